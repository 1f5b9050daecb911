"""What practitioners know to fit and not to fit, with the real memory estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategy_helpers import GIB, H100, RTX_4090, T4, llama, node

from hf_recipes.plan.memory.estimate import estimate_memory
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.candidates import ALL_OPEN, Wishes
from hf_recipes.plan.strategy.choose import choose_strategy
from hf_recipes.plan.strategy.names import strategy_of
from hf_recipes.plan.strategy.variants import lora_settings, qlora_settings, with_lora

FULL = TrainingSettings(method="full", weights_dtype="float32", tokens=1024)
SEVEN_B = llama()
THIRTEEN_B = llama(5120, 40, 40, 40, 13824)  # Llama-2-13B


def choose(geometry, settings, machines, wishes=ALL_OPEN):
    return choose_strategy(geometry, settings, machines, global_batch=32, estimate=estimate_memory, wishes=wishes)


def test_the_geometries_are_the_public_ones():
    assert (SEVEN_B.total, THIRTEEN_B.total) == (6_738_415_616, 13_015_864_320)


@pytest.mark.parametrize(("model", "machines"), [(THIRTEEN_B, RTX_4090), (SEVEN_B, T4)], ids=["13B-24GB", "7B-16GB"])
def test_qlora_fits_on_one_small_card(model, machines):
    choice = choose(with_lora(model), qlora_settings(FULL), machines, Wishes(offload=False))
    assert choice.taken is not None
    assert strategy_of(choice.taken.layout) == "single"


def test_lora_on_7b_in_bf16_is_tight_on_24_gb():
    # 13.5 GB of weights leave room for a row or two of 1,024 tokens, not for eight without checkpointing.
    lora = with_lora(SEVEN_B)
    assert choose(lora, lora_settings(FULL), RTX_4090, Wishes(offload=False)).taken
    eager = Wishes(micro_batch=8, checkpointing="off", offload=False)
    none = choose(lora, lora_settings(FULL), RTX_4090, eager)
    assert none.taken is None
    assert {"per_device_train_batch_size: 1", "method: qlora"} & {change.words for change in none.changes}


def test_a_full_7b_does_not_fit_on_one_80_gb_card():
    choice = choose(SEVEN_B, FULL, H100, Wishes(offload=False))
    assert choice.taken is None
    # 16 bytes of states a parameter are 107.8e9, 100.4 GiB, before activations.
    assert choice.others[0].memory.device_bytes > 100.4 * GIB
    words = [change.words for change in choice.changes]
    assert "method: lora" in words
    assert "2 devices instead of 1" in words
    assert any(word.startswith("optim: ") for word in words)


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "fsdp"])
def test_a_full_7b_fits_on_eight_of_them(strategy):
    choice = choose(SEVEN_B, FULL, node(H100, 8), Wishes(strategy=strategy))
    assert choice.taken is not None
    assert strategy_of(choice.taken.layout) == strategy


def test_ddp_does_not_and_the_cheapest_is_told_with_why():
    choice = choose(SEVEN_B, FULL, node(H100, 8))
    why = {strategy_of(one.layout): one for one in choice.others}
    assert not why["ddp"].fits
    assert strategy_of(choice.taken.layout) in ("zero1", "zero2", "fsdp", "zero3")
    assert choice.taken.settings.checkpointing == "off"


def test_seventy_b_in_full_needs_the_host_or_more_nodes():
    model = llama(8192, 80, 64, 8, 28672)
    lone = choose(model, FULL, node(H100, 8), Wishes(offload=False))
    assert lone.taken is None
    assert any("devices in" in change.words for change in lone.changes)
    host = choose(model, FULL, node(replace(H100, host_memory_bytes=2048 * GIB), 8))
    assert host.taken.layout.offload_optimizer
    assert "of each node's own memory" in host.reason
