"""Packing on real tiny models; run under torchrun, this file is also the ranks' side of its own two-rank tests."""

from __future__ import annotations

import copy
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments
from torch import nn
from two_ranks import leave_group, run_two_ranks

from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.data.batching.packing import pack, packed_dataset, sample_lengths
from hf_recipes.models.methods.lora import LoraSettings, attach_lora
from hf_recipes.training.arguments import total_steps
from hf_recipes.training.isolation import TOLERANCE, find_isolation, probe_isolation
from hf_recipes.training.trainer import SupervisedTrainer

VOCABULARY = 448
SAMPLE = torch.randint(3, VOCABULARY, (40,), generator=torch.Generator().manual_seed(1)).tolist()
WINDOW = 6  # shorter than the probe's documents
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
KINDS = {
    "Llama": {},
    "Qwen2": {},
    "Mistral": {"sliding_window": WINDOW},
    "Gemma3": {"sliding_window": WINDOW, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "GptOss": {"sliding_window": WINDOW, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    "Gemma2": {"sliding_window": WINDOW, "head_dim": 8, "final_logit_softcapping": 5.0},
}
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}


def build(kind, attention=None, **overrides):
    torch.manual_seed(0)
    config_name = f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config"
    config = getattr(transformers, config_name)(**{**COMMON, **KINDS[kind], **overrides})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    if attention:
        model.set_attn_implementation(attention)
    return model


class Meddler(nn.Module):
    """A wrapper that changes the call on its way to the model."""

    def __init__(self, model, change):
        super().__init__()
        self.model, self.change, self.config = model, change, model.config

    def forward(self, **inputs):
        return self.model(**self.change(inputs))


@pytest.mark.parametrize("autocast", [torch.bfloat16, None])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_a_real_model_is_packed_in_whatever_dtype_it_computes(smollm2_dir, weights, autocast):
    """Rounding moves losses in 16 bits by more than they may differ in fp32; what sees others is found all the same."""
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=weights)
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    sample = tokenizer("Kira wants 40 cables, by ship, and Tom 51 rugs on Monday.").input_ids
    found = probe_isolation(model, sample, autocast_dtype=autocast)
    assert found.isolated and found.tolerance == (1e-2 if torch.bfloat16 in (weights, autocast) else 1e-3), found
    leaking = Meddler(model, lambda inputs: {name: each for name, each in inputs.items() if name != "position_ids"})
    assert not probe_isolation(leaking, sample, autocast_dtype=autocast).isolated


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        *((kind, attention) for kind in ("Llama", "Qwen2", "Mistral", "Gemma3") for attention in ("sdpa", "eager")),
        ("Gemma2", "eager"),  # has no sdpa
    ],
)
def test_d14_packed_loss_is_the_separate_loss(kind, attention):
    found = probe_isolation(build(kind, attention), SAMPLE)
    assert found.isolated, found
    assert found.difference < 1e-5
    assert found.backend == f"{kind}ForCausalLM, {attention} attention"
    assert abs(found.leaking - found.separate) > 20 * abs(found.packed - found.separate)


def test_a_lora_model_in_autocast_stays_isolated_and_in_its_mode():
    model = attach_lora(build("Llama"), LoraSettings(r=4, alpha=8, dropout=0.5))
    model.train()
    frozen = next(module for module in model.modules() if isinstance(module, nn.Embedding))
    frozen.eval()
    found = probe_isolation(model, SAMPLE, autocast_dtype=torch.bfloat16)
    assert found.isolated, found  # dropout off: with it no two losses would agree
    assert model.training and not frozen.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("an attention mask", lambda inputs: {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}),
        ("a cache", lambda inputs: {**inputs, "use_cache": True}),
        ("positions lost", lambda inputs: {key: inputs[key] for key in ("input_ids", "use_cache")}),
    ],
)
def test_d14_what_undoes_the_isolation_is_found_out(name, change):
    assert not probe_isolation(Meddler(build("Llama"), change), SAMPLE).isolated


def test_d14_a_leak_shows_though_the_model_hardly_minds_what_it_sees():
    model = build("Llama", initializer_range=0.005)
    found = probe_isolation(Meddler(model, lambda inputs: {**inputs, "use_cache": True}), SAMPLE)
    assert found.difference < TOLERANCE  # that alone would have let it pass
    assert not found.isolated
    assert probe_isolation(model, SAMPLE).isolated


def test_d14_a_leak_in_a_model_that_has_learned_is_large():
    """In a random model it is small: hence the comparison with an outright leak."""
    model = make_tiny_llama(VOCABULARY)
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        ids = torch.tensor([SAMPLE[:24]])
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    found = probe_isolation(Meddler(model, lambda inputs: {**inputs, "use_cache": True}), SAMPLE)
    assert found.difference > 10 * TOLERANCE, found
    assert probe_isolation(model, SAMPLE).isolated


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: build("GptOss"), id="GptOss: its code makes the mask without positions"),
        pytest.param(
            lambda: transformers.BloomForCausalLM(transformers.BloomConfig(**{**SMALL, "n_layer": 2, "n_head": 4})),
            id="Bloom: ALiBi, no positions",
        ),
        pytest.param(
            lambda: transformers.MambaForCausalLM(transformers.MambaConfig(**SMALL, state_size=8)),
            id="Mamba: a state, no attention",
        ),
    ],
)
def test_d14_models_without_isolation_are_refused(model):
    torch.manual_seed(0)
    model = model()
    for one_row in (False, True):
        found = probe_isolation(model, SAMPLE, one_row=one_row)
        assert not found.isolated, found


def test_prefix_tuning_is_refused():
    from peft import PrefixTuningConfig, get_peft_model

    model = get_peft_model(build("Llama"), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    assert not probe_isolation(model, SAMPLE).isolated


def no_mask_at_all(module, query, key, value, attention_mask, **kwargs):
    """An attention kernel that transformers knows no mask for: it hands over none, so everything before is seen."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    assert attention_mask is None
    return sdpa_attention_forward(module, query, key, value, None, **kwargs)


def variable_length(module, query, key, value, attention_mask, position_ids=None, **kwargs):
    """As `transformers` calls flash attention: told apart by positions, but only where the batch is one row."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    mask = None
    if query.shape[0] == 1:
        document = (position_ids[0] == 0).cumsum(0)
        mask = ((document[:, None] == document) & torch.ones(len(document), len(document)).tril().bool())[None, None]
    return sdpa_attention_forward(module, query, key, value, mask, **kwargs)


@pytest.fixture(scope="module", autouse=True)
def backends():
    transformers.AttentionInterface.register("no_mask_at_all", no_mask_at_all)
    transformers.AttentionInterface.register("variable_length", variable_length)


def test_d14_a_backend_that_ignores_the_isolation_means_no_packing_and_a_warning(caplog):
    model = build("Llama", "no_mask_at_all")
    with caplog.at_level(logging.INFO, "hf_recipes"):
        found = find_isolation(model, SAMPLE)
    assert not found.isolated
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    told = record.getMessage()
    assert told.startswith(
        "No packing, samples are padded instead: packed samples do not stay apart on LlamaForCausalLM"
    )
    assert "no_mask_at_all attention" in told
    for number in (found.packed, found.separate, found.leaking):
        assert f"{number:.5f}" in told


def test_a_backend_of_variable_length_gets_all_rows_in_one(caplog):
    model = build("Llama", "variable_length")
    assert not probe_isolation(model, SAMPLE).isolated
    with caplog.at_level(logging.INFO, "hf_recipes"):
        found = find_isolation(model, SAMPLE)
    assert found.isolated and found.one_row
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "joined into one" in caplog.text


def test_isolation_is_told_as_news_not_as_a_warning(caplog):
    with caplog.at_level(logging.INFO, "hf_recipes"):
        found = find_isolation(build("Llama"), SAMPLE)
    assert found.isolated and not found.one_row
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_a_kernel_that_is_not_there_is_a_refusal_with_its_reason():
    model = build("Llama")
    model.config._attn_implementation = "flash_attention_2"  # from_pretrained would have refused it earlier
    found = probe_isolation(model, SAMPLE)
    assert not found.isolated
    assert found.failure and found.failure in str(found)
    assert "flash_attention_2" in str(found)


@pytest.mark.parametrize("tokens", [1, 3, 500])
def test_any_sample_serves_the_probe(tokens):
    assert probe_isolation(build("Llama"), (SAMPLE * 13)[:tokens]).isolated


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────────

LIMIT = 64
LENGTHS = [6 + 2 * index for index in range(12)]  # 204 tokens: best-fit decreasing makes 64, 64, 62 and 14 of them


def samples():
    generator = np.random.default_rng(0)
    rows = []
    for length in LENGTHS:
        ids = generator.integers(3, VOCABULARY, length).tolist()
        rows.append({"input_ids": ids, "labels": [-100] * (length // 3) + ids[length // 3 :]})
    return Dataset.from_list(rows)


def train_set(packed):
    rows = samples()
    return packed_dataset(rows, pack(sample_lengths(rows), LIMIT, 0)) if packed else rows


def arguments(directory, *, batch, accumulation, strategy="random", epochs=3):
    return tiny_arguments(
        directory,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        train_sampling_strategy=strategy,
        ddp_find_unused_parameters=False,
    )


def make_trainer(rows, args, model=None, tokenizer=None):
    model = model or make_tiny_llama(VOCABULARY)
    # SFTTrainer wants a processing class; nothing here is tokenised.
    tokenizer = tokenizer or transformers.PreTrainedTokenizerFast(tokenizer_object=_words(), pad_token="<pad>")
    collator = SupervisedCollator(pad_token_id=2)
    return SupervisedTrainer(
        model=model, args=args, data_collator=collator, train_dataset=rows, processing_class=tokenizer
    )


def _words():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1}, unk_token="<unk>"))


def losses(directory, *, packed=False, **keys):
    """Loss and gradient norm of three steps, each over all twelve samples."""
    trainer = make_trainer(train_set(packed), arguments(directory, **keys))
    trainer.train()
    assert trainer.state.global_step == 3
    return [[log["loss"], log["grad_norm"]] for log in trainer.state.log_history if "loss" in log]


@pytest.fixture(scope="module")
def padded_losses(tmp_path_factory):
    return losses(tmp_path_factory.mktemp("padded"), batch=12, accumulation=1)


@pytest.mark.parametrize(
    "keys",
    [
        {"batch": 2, "accumulation": 6},
        {"batch": 2, "accumulation": 6, "strategy": "group_by_length"},
        {"batch": 4, "accumulation": 1, "packed": True},
        {"batch": 1, "accumulation": 4, "packed": True},
        {"batch": 2, "accumulation": 2, "packed": True},
    ],
    ids=str,
)
def test_d17_the_same_samples_give_the_same_losses_padded_grouped_and_packed(keys, padded_losses, tmp_path):
    difference = (torch.tensor(losses(tmp_path, **keys)) - torch.tensor(padded_losses)).abs()
    assert difference.max() < 1e-3, difference


@pytest.mark.parametrize("kind", ["Llama", "Gemma2"])  # Gemma2 caps its logits and takes TRL's own loss
def test_d14_the_trainers_own_loss_of_packed_samples_is_that_of_separate_ones(kind, tmp_path):
    rows = samples()
    model = build(kind)
    trainer = make_trainer(rows, arguments(tmp_path, batch=4, accumulation=1), model)
    trainer.model.eval()
    collator = trainer.data_collator
    batches = [collator([rows[index] for index in range(12)]), collator(list(train_set(packed=True)))]
    supervised = [(batch["labels"][:, 1:] != -100).sum() for batch in batches]
    assert supervised[0] == supervised[1]
    with torch.no_grad():
        separate, packed = (trainer.compute_loss(trainer.model, batch).item() for batch in batches)
    assert packed == pytest.approx(separate, rel=1e-5)


@pytest.mark.parametrize(("batch", "accumulation", "epochs"), [(1, 1, 1), (2, 1, 2), (3, 1, 1), (1, 3, 2)])
def test_steps_are_counted_in_packed_rows(batch, accumulation, epochs, tmp_path):
    packed = train_set(packed=True)
    assert len(packed) == 4
    args = arguments(tmp_path, batch=batch, accumulation=accumulation, epochs=epochs)
    trainer = make_trainer(packed, copy.deepcopy(args))
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == total_steps(len(packed), args)


# ── two ranks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two-ranks")
    return run_two_ranks(Path(__file__), directory)


@pytest.mark.slow
@pytest.mark.trials  # tests/training/test_run.py has two processes that train as one
@pytest.mark.parametrize("way", ["padded", "grouped", "packed"])
def test_d17_two_ranks_give_the_losses_of_one(way, ranks, padded_losses):
    for seen in ranks:
        difference = (torch.tensor(seen[way]) - torch.tensor(padded_losses)).abs()
        assert difference.max() < 1e-3, difference


@pytest.mark.trials
@pytest.mark.slow
def test_d14_one_rank_that_leaks_stops_packing_on_both(ranks):
    assert [seen["isolated"] for seen in ranks] == [True, True]
    assert [seen["one leaks"] for seen in ranks] == [False, False]
    assert all("do not stay apart" in seen["told"] for seen in ranks)


def as_a_rank(directory):
    torch.set_num_threads(1)
    seen = {
        "padded": losses(directory / "padded", batch=3, accumulation=2),
        "grouped": losses(directory / "grouped", batch=3, accumulation=2, strategy="group_by_length"),
        "packed": losses(directory / "packed", batch=1, accumulation=2, packed=True),
    }
    model = make_tiny_llama(VOCABULARY)
    seen["isolated"] = find_isolation(model, SAMPLE).isolated
    if os.environ["RANK"] == "1":
        model = Meddler(model, lambda inputs: {**inputs, "use_cache": True})
    found = find_isolation(model, SAMPLE)
    seen |= {"one leaks": found.isolated, "told": str(found)}
    leave_group(directory, seen)


if __name__ == "__main__":
    as_a_rank(Path(sys.argv[1]))
