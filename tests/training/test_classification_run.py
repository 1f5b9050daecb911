from __future__ import annotations

import json

import pytest
import torch
from datasets import Dataset
from sampled import sampled
from transformers import LlamaConfig, LlamaForSequenceClassification, Trainer, TrainingArguments

from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.classification import _Collator, check_classification, check_head, train_classifier


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"text": text, "label": label} for text, label in [("yes, sure", "good"), ("maybe not", "bad")] * 20]
    for index, row in enumerate(rows):
        row["text"] += f" {index}"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


METHODS = [
    "lora",
    "lora --dtype bfloat16 --bf16 true",
    "full",
    "partial --trainable_layers 1",
    "adapter --adapter_size 8",
    "ia3",
    "lora --init_lora_weights pissa --lora_dropout 0 --loraplus_lr_ratio 2",
]


@pytest.mark.parametrize("method", sampled(METHODS, keep=[METHODS[1], "full", METHODS[-1]]))
def test_a_classifier_learns_is_saved_and_loads_with_its_labels(method, workplace, tiny_model_dir):
    keys = f"--model_name_or_path {tiny_model_dir} --datasets rows.jsonl --output_dir run --method {method}"
    keys += " --learning_rate 0.02 --num_train_epochs 4 --per_device_train_batch_size 8 --disable_tqdm true"
    run = train_classifier(load_recipe("smollm2/classify", keys.split()))
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    accuracy = [event["eval_accuracy"] for event in events if "eval_accuracy" in event]
    if method in ("lora", "full"):  # four epochs of a random model are too few for the others
        assert accuracy[-1] == 1.0
    assert json.loads(run.run_json.read_text())["labels"] == ["bad", "good"]
    whole = method.startswith(("full", "partial"))
    assert run.result.name == ("model" if whole else "adapter")
    assert verify_checkpoint(run.result).ok
    if "pissa" in method:  # plain LoRA of twice the recipe's rank, 8, for the base as published
        saved = json.loads((run.adapter / "adapter_config.json").read_text())
        assert (saved["init_lora_weights"], saved["r"]) == (True, 16)
    if whole:
        model = LlamaForSequenceClassification.from_pretrained(run.model)
        assert model.config.id2label == {0: "bad", 1: "good"}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [("--method prefix", "a classifier takes no prefix"), ("--init_lora_weights eva", "eva reads the tokens")],
)
def test_what_cannot_train_a_classifier_is_refused_at_once(keys, sentence, workplace, tiny_model_dir):
    start = f"--model_name_or_path {tiny_model_dir} --datasets rows.jsonl --output_dir run {keys}"
    with pytest.raises(UserError, match=sentence):
        train_classifier(load_recipe("smollm2/classify", start.split()))


def test_keys_without_effect_on_a_classifier_are_told(tiny_model_dir, caplog):
    keys = f"--model_name_or_path {tiny_model_dir} --datasets rows.jsonl --packing true --loss_kernel liger"
    keys += " --overfit_check 8"
    check_classification(load_recipe("smollm2/classify", keys.split()))
    assert "Without effect on a classifier: loss_kernel, overfit_check, packing." in caplog.text


def head_trainer(tokenizer, tmp_path, scale):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_labels=4,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForSequenceClassification(config)
    model.score.weight.data.normal_(std=scale)
    rows = [{"input_ids": tokenizer(f"text {index}")["input_ids"], "labels": index % 4} for index in range(16)]
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    return Trainer(model=model, args=args, train_dataset=Dataset.from_list(rows), data_collator=_Collator(tokenizer))


def test_an_undecided_head_is_fine_and_an_opinionated_one_is_told(tokenizer, tmp_path, caplog):
    assert check_head(head_trainer(tokenizer, tmp_path, 0.02), 4) == pytest.approx(1.386, abs=0.1)
    assert caplog.text == ""
    assert check_head(head_trainer(tokenizer, tmp_path, 5.0), 4) > 4
    assert "The untrained head starts at a loss of" in caplog.text
