from __future__ import annotations

import copy
import logging

import pytest
import torch
from datasets import Dataset
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments
from transformers import AutoModelForCausalLM, LlamaForSequenceClassification

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.methods.partial import PartialSettings, attach_partial, find_decoder_layers
from hf_recipes.training.trainer import SupervisedTrainer

# Hidden 32, two key-value heads of four (16 wide), intermediate 64: q and o 32·32, k and v 16·32, three of 32·64, and
# two norms of 32.
LAYER = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64 + 2 * 32
NORM = 32


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, 440, (8 + index,), generator=generator).tolist() for index in range(8)]
    return Dataset.from_list([{"input_ids": row, "labels": [-100] * 3 + row[3:]} for row in ids])


def trainer_of(model, rows, tokenizer, directory, **more):
    arguments = tiny_arguments(directory, per_device_train_batch_size=4, lr_scheduler_type="constant", **more)
    collator = SupervisedCollator(pad_token_id=2)
    return SupervisedTrainer(
        model=model, args=arguments, data_collator=collator, train_dataset=rows, processing_class=tokenizer
    )


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def trained_names(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    ("layers", "modules", "expected"),
    [
        (1, (), LAYER),
        (-1, (), LAYER),
        (2, (), 2 * LAYER),
        (1, None, LAYER),
        (1, ["norm"], LAYER + NORM),
        (None, "norm", NORM),
        (0, ["self_attn.q_proj"], 2 * 32 * 32),
        (0, r"model\.layers\.0\.mlp\..*_proj", 3 * 32 * 64),
        (1, ["lm_head"], LAYER + 512 * 32),
        (1, ["layers.1.mlp"], LAYER),
    ],
)
def test_exactly_the_chosen_layers_and_modules_are_trained(layers, modules, expected):
    model = make_tiny_llama(512, tied=False)
    assert attach_partial(model, PartialSettings(layers, modules)) is model
    assert count_parameters(model)[0] == expected


def test_positive_are_the_last_and_negative_the_first_layers():
    model = make_tiny_llama(512, num_hidden_layers=3)
    attach_partial(model, PartialSettings(2))
    assert {name.split(".")[2] for name in trained_names(model)} == {"1", "2"}
    attach_partial(model, PartialSettings(-2))
    assert {name.split(".")[2] for name in trained_names(model)} == {"0", "1"}


def test_decoder_layers_are_found_where_they_have_another_name():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=3, n_head=2, n_positions=32))
    name, layers = find_decoder_layers(model)
    assert (name, len(layers)) == ("transformer.h", 3)


def test_the_largest_of_two_lists_of_that_length_are_the_decoder_layers():
    model = make_tiny_llama(512)
    model.adapters = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    assert find_decoder_layers(model)[0] == "model.layers"


def test_tied_head_and_embedding_are_one_trained_weight_and_it_is_told(caplog):
    model = make_tiny_llama(512, tied=True).to(torch.bfloat16)
    with caplog.at_level(logging.INFO, "hf_recipes"):
        attach_partial(model, PartialSettings(0, ["lm_head"]))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.dtype == torch.float32
    assert count_parameters(model)[0] == 512 * 32
    assert "Head and input embedding are tied: both are trained, as one weight." in caplog.messages
    assert "Trained: lm_head, 16,384 parameters." in caplog.messages


def test_what_is_trained_is_told_with_counts(caplog):
    with caplog.at_level(logging.INFO, "hf_recipes"):
        attach_partial(make_tiny_llama(512), PartialSettings(1, ["q_proj", "input_layernorm"]))
    assert caplog.messages == [
        f"Trained: model.layers.1, {LAYER:,} parameters.",
        "Trained: model.layers.0.self_attn.q_proj, model.layers.1.self_attn.q_proj, model.layers.0.input_layernorm … "
        "model.layers.1.input_layernorm (4 modules), 2,112 parameters.",
    ]


def test_only_the_chosen_weights_move_and_the_loss_falls(rows, tokenizer, tmp_path):
    model = attach_partial(make_tiny_llama(len(tokenizer)), PartialSettings(1, ["norm"]))
    before = copy.deepcopy(model.state_dict())
    trainer = trainer_of(model, rows, tokenizer, tmp_path, max_steps=12)
    trainer.train()
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == trained_names(model)
    assert losses(trainer)[-1] < losses(trainer)[0] - 0.2
    optimised = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_as_a_whole_model_and_reloaded_it_gives_the_same_logits(dtype, rows, tokenizer, tmp_path):
    model = attach_partial(make_tiny_llama(len(tokenizer)).to(dtype), PartialSettings(1, ["lm_head"]))
    trainer = trainer_of(model, rows, tokenizer, tmp_path, max_steps=3, bf16=dtype == torch.bfloat16)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    for name, tensor in model.state_dict().items():
        assert torch.equal(reloaded.state_dict()[name], tensor.float()), name  # the fp32 ones are kept as such
    live = make_tiny_llama(len(tokenizer), seed=1)  # the trained one's forward stays under autocast
    live.load_state_dict(model.state_dict())
    ids = torch.tensor([rows[0]["input_ids"]])
    assert torch.equal(reloaded(ids).logits, live.eval()(ids).logits)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.trials)])
def test_c4_a_resumed_run_gives_the_losses_of_the_unbroken_one(dtype, rows, tokenizer, tmp_path):
    def run(directory, steps, checkpoint=None, **more):
        model = attach_partial(make_tiny_llama(len(tokenizer)).to(dtype), PartialSettings(1, ["lm_head"]))
        more["bf16"] = dtype == torch.bfloat16
        trainer = trainer_of(model, rows, tokenizer, directory, max_steps=steps, **more)
        trainer.train(resume_from_checkpoint=checkpoint)
        return losses(trainer), model

    unbroken, model = run(tmp_path / "whole", 6)
    run(tmp_path / "parts", 3, save_strategy="steps", save_steps=3)
    resumed, model_resumed = run(tmp_path / "parts", 6, str(tmp_path / "parts" / "checkpoint-3"))
    assert resumed == unbroken
    for name, tensor in model.state_dict().items():
        assert torch.equal(model_resumed.state_dict()[name], tensor), name


def test_updates_too_small_for_bf16_are_kept(rows, tokenizer, tmp_path, caplog):
    """At lr 1e-6 Adam moves a weight of 0.02 by 1e-6, a bf16 step there is 6e-5 to 1.2e-4."""
    kept = {}
    for in_fp32 in (True, False):
        caplog.clear()
        with caplog.at_level(logging.INFO, "hf_recipes"):
            model = make_tiny_llama(len(tokenizer)).to(torch.bfloat16)
            attach_partial(model, PartialSettings(1), autocast_adapter_dtype=in_fp32)
        told = [record for record in caplog.records if "16 bits" in record.getMessage()]
        assert [record.levelno for record in told] == [logging.INFO if in_fp32 else logging.WARNING]
        weight = model.model.layers[1].mlp.up_proj.weight
        before = weight.detach().clone()
        arguments = {"max_steps": 2, "bf16": True, "learning_rate": 1e-6, "weight_decay": 0.0}
        trainer_of(model, rows, tokenizer, tmp_path, **arguments).train()
        kept[in_fp32] = (weight != before).float().mean().item()
    assert kept[True] > 0.99
    assert kept[False] < 0.05


def test_a_frozen_rest_stays_in_its_dtype():
    model = make_tiny_llama(512).to(torch.bfloat16)
    attach_partial(model, PartialSettings(1))
    assert {p.dtype for p in model.model.layers[1].parameters()} == {torch.float32}
    assert {p.dtype for p in model.model.layers[0].parameters()} == {torch.bfloat16}


def test_a_new_classification_head_is_always_trained():
    config = make_tiny_llama(512).config
    config.num_labels = 3
    model = attach_partial(LlamaForSequenceClassification(config), PartialSettings(1), task_type="SEQ_CLS")
    assert "score.weight" in trained_names(model)
    assert count_parameters(model)[0] == LAYER + 3 * 32


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            PartialSettings(3),
            "trainable_layers: 3 asked, but LlamaForCausalLM has 2 decoder layers: choose 1 to 2 for the last, -1 to "
            "-2 for the first ones.",
        ),
        (PartialSettings(-3), "trainable_layers: -3 asked"),
        (PartialSettings(0), "'partial' has nothing to train: give 'trainable_layers'"),
        (PartialSettings(0, ""), "'partial' has nothing to train"),
        (PartialSettings(None, None), "'partial' has nothing to train"),
        (PartialSettings("1"), "trainable_layers is '1': give a whole number."),
        (PartialSettings(1.5), "trainable_layers is 1.5: give a whole number."),
        (PartialSettings(True), "trainable_layers is True: give a whole number."),
        (PartialSettings(1, 5), "trainable_modules is 5: give a name or a list of names."),
        (PartialSettings(1, [None]), "trainable_modules is [None]: give a name or a list of names."),
        (PartialSettings(1, train_router="no"), "train_router is 'no': give true or false."),
        (
            PartialSettings(1, ["lm_haed"]),
            "trainable_modules: 'lm_haed' matches no module of LlamaForCausalLM (did you mean 'lm_head'?): choose from "
            "down_proj, embed_tokens, gate_proj",
        ),
        (PartialSettings(1, ["norm", "proj"]), "trainable_modules: 'proj' matches no module"),  # no part of a name
        (PartialSettings(0, r"layers\.0"), "trainable_modules: 'layers\\.0' matches no module"),  # not the whole name
        (PartialSettings(0, "(mlp"), "trainable_modules: '(mlp' is no regular expression"),
        (PartialSettings(0, ["rotary_emb"]), "trainable_modules: 'rotary_emb' has no parameters"),
        (PartialSettings(1, train_router=True), "train_router: LlamaForCausalLM is no mixture of experts"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, sentence):
    with pytest.raises(UserError) as error:
        attach_partial(make_tiny_llama(512), settings)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_quantised_weights_are_refused(tiny_model_dir):
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained(
        tiny_model_dir, quantization_config=config, dtype=torch.bfloat16, device_map={"": "cpu"}
    )
    with pytest.raises(UserError, match=r"cannot train model\.layers\.1\.self_attn\.q_proj\.weight: .* quantised"):
        attach_partial(model, PartialSettings(1))
    assert attach_partial(model, PartialSettings(0, ["norm"])) is model  # what is not quantised can be trained


def test_a_model_without_layers_of_that_number_says_so():
    model = make_tiny_llama(512)
    model.config.num_hidden_layers = 7
    with pytest.raises(UserError, match="no list of decoder layers is found in LlamaForCausalLM"):
        attach_partial(model, PartialSettings(1))
