"""The choice with a plain memory estimate: what is taken, why, why not the others, and what is advised."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_helpers import A100_40, GIB, H100, RTX_4090, T4, llama, node, plain_estimate

from hf_recipes.core.errors import UserError
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.candidates import ALL_OPEN, Candidate, Wishes, is_launched
from hf_recipes.plan.strategy.choose import choose_strategy
from hf_recipes.plan.strategy.names import strategy_of
from hf_recipes.plan.strategy.variants import lora_settings, qlora_settings, with_lora

FULL = TrainingSettings(method="full", weights_dtype="float32", tokens=1024)
SEVEN_B = llama()
THIRTEEN_B = llama(5120, 40, 40, 40, 13824)
SEVENTY_B = llama(8192, 80, 64, 8, 28672)


def choose(geometry, job, machines, global_batch=32, wishes=ALL_OPEN, estimate=plain_estimate):
    return choose_strategy(geometry, job, machines, global_batch=global_batch, estimate=estimate, wishes=wishes)


def taken(choice):
    return strategy_of(choice.taken.layout)


def test_what_fits_everywhere_is_not_shared():
    choice = choose(with_lora(SEVEN_B), lora_settings(FULL), H100)
    assert taken(choice) == "single"
    assert choice.taken.settings.checkpointing == "off"
    choice = choose(with_lora(SEVEN_B), lora_settings(FULL), node(H100, 8))
    assert taken(choice) == "ddp"
    assert "the cheapest that fits" in choice.reason
    assert choice.taken.why == choice.reason


def test_a_strategy_that_was_asked_for_is_not_called_the_cheapest():
    choice = choose(with_lora(SEVEN_B), lora_settings(FULL), node(H100, 8), wishes=Wishes(strategy="zero3"))
    assert taken(choice) == "zero3"
    assert "the strategy that was asked for, in its cheapest way that fits" in choice.reason


def test_a_full_7b_needs_sharing():
    # 16 bytes a parameter are 107.8e9 on each rank with DDP, 1 GiB and the activations of one row beside them; ZeRO-1
    # over 8 leaves (4 + 12/8) bytes, 37.1e9. Where a step is one micro-batch ZeRO-2 talks as much.
    choice = choose(SEVEN_B, FULL, node(H100, 8))
    assert taken(choice) == "zero1"
    why = {strategy_of(one.layout): one.why for one in choice.others}
    assert why["ddp"] == "needs 101.6 GiB at least (in the backward pass), has 79.6 GiB"
    assert "DDP over 8 ranks needs 101.6 GiB at least" in choice.reason
    assert set(why) | {taken(choice)} == {
        *("ddp", "zero1", "zero2", "fsdp", "zero3", "zero2_offload", "zero3_offload", "fsdp_offload"),
        "zero3_offload_all",
    }


def test_runners_up_are_those_that_fit_and_cost_more():
    choice = choose(SEVEN_B, FULL, node(H100, 8))
    seconds = [one.cost.seconds for one in choice.runners_up]
    assert seconds == sorted(seconds)
    assert choice.runners_up
    assert all(one.fits and one.why.startswith("fits in") for one in choice.runners_up)
    assert "to the host and back" in {strategy_of(one.layout): one.why for one in choice.runners_up}["zero2_offload"]


def test_without_a_link_what_talks_least_is_taken():
    # DDP reduces fp32 gradients; ZeRO-1 sends three quarters of that in bf16, and FSDP2 as much: the simplest of them.
    small = llama(2048, 16, 16, 16, 5632)
    choice = choose(small, FULL, node(RTX_4090, 8))
    why = {strategy_of(one.layout): one.why for one in choice.others}
    assert taken(choice) == "zero1"
    assert "PCIe" in why["ddp"]
    assert "is no faster" in why["fsdp"]


def test_states_go_to_the_host_only_where_nothing_else_fits():
    machines = replace(H100, host_memory_bytes=512 * GIB)
    choice = choose(SEVEN_B, FULL, machines)
    assert taken(choice) == "zero2_offload"
    assert "one device" in choice.reason
    poor = replace(machines, host_memory_bytes=32 * GIB)
    none = choose(SEVEN_B, FULL, poor)
    assert none.taken is None
    assert "of a node's own memory, has 32.0 GiB" in " ".join(one.why for one in none.others)


def test_checkpointing_rises_no_further_than_it_must():
    kinds = [
        choose(with_lora(SEVEN_B), lora_settings(replace(FULL, tokens=tokens)), RTX_4090, wishes=Wishes(micro_batch=1))
        for tokens in (512, 2048, 16384)
    ]
    found = [choice.taken.settings.checkpointing for choice in kinds]
    assert found[0] == "off"
    assert found[2] in ("selective", "all", "host")
    assert found == sorted(found, key=["off", "every_4", "every_3", "every_2", "selective", "all", "host"].index)


def test_a_tight_fit_is_said():
    choice = choose(with_lora(SEVEN_B), lora_settings(FULL), RTX_4090)
    needs = choice.taken.memory.device_bytes / RTX_4090.memory_bytes
    assert ("which is tight" in choice.reason) == (needs > 0.88)


def test_nothing_fits_is_a_sentence_with_changes_that_were_tried():
    choice = choose(SEVEN_B, FULL, H100, wishes=Wishes(offload=False))
    assert choice.taken is None
    # 16 · 6.738e9 bytes, a tenth of 34 · 1024 · 4096 · 32 of activations, and 1 GiB.
    assert choice.reason.startswith(
        "needs 101.8 GiB at least (in the backward pass), has 79.6 GiB; change one of these: "
    )
    words = [change.words for change in choice.changes]
    assert words == [
        "offload to the host",
        "optim: adamw_8bit",
        "method: lora",
        "2 devices instead of 1",
    ]
    for change in choice.changes:
        assert change.considered.fits
        assert change.needs_bytes <= 0.95 * H100.memory_bytes
        assert f"{change.words} (needs " in choice.reason


def test_the_longest_length_that_fits_is_named():
    job, wishes = lora_settings(replace(FULL, tokens=65_536)), Wishes(offload=False)

    def at(tokens):
        return choose(with_lora(SEVEN_B), replace(job, tokens=tokens), RTX_4090, 1, wishes)

    choice = at(65_536)
    assert choice.taken is None
    (length,) = [change for change in choice.changes if change.words.startswith("max_length")]
    tokens = int(length.words.split(": ")[1])
    assert tokens % 64 == 0
    assert at(tokens).taken
    assert not at(tokens + 64).taken


def test_what_the_user_decided_is_the_first_to_be_opened():
    wishes = Wishes(micro_batch=64, checkpointing="off", strategy="ddp")
    choice = choose(with_lora(SEVEN_B), lora_settings(FULL), node(RTX_4090, 2), 128, wishes)
    assert choice.taken is None
    assert choice.changes[0].words == "per_device_train_batch_size: 1"


def test_where_no_single_change_is_enough_two_are_tried():
    choice = choose(SEVENTY_B, FULL, T4, wishes=Wishes(offload=False))
    assert choice.taken is None
    assert choice.changes
    assert all(" with " in change.words for change in choice.changes)
    assert all(change.considered.fits for change in choice.changes)


def test_a_base_that_cannot_be_shared_while_packed_is_advised_to_be_shared_unpacked():
    def packed_is_whole(geometry, job, layout):
        whole = replace(layout, sharding="ddp", offload_weights=False)
        return plain_estimate(geometry, job, whole if job.quantization else layout)

    # 70B in NF4 on each of 8 cards of 24 GB is 36 GB; 141e9 bytes in 16 bits over 8 are 17.6e9.
    machines = node(RTX_4090, 8)
    none = choose(with_lora(SEVENTY_B), qlora_settings(FULL), machines, estimate=packed_is_whole)
    assert none.taken is None
    assert "method: lora" in [change.words for change in none.changes]


def test_rows_and_matrices_are_cut_only_where_nothing_else_fits():
    # 70B in full on 8 × 80 GB without offload: 16 bytes a parameter over 8 are 141e9 a rank; no degree changes that.
    none = choose(SEVENTY_B, FULL, node(H100, 8), wishes=Wishes(offload=False))
    assert none.taken is None
    assert any(one.layout.tensor > 1 for one in none.others)
    # 4 rows of 128k tokens on 8 devices: 34·s·h·L is too much for one rank, an eighth of a row is not.
    long = replace(lora_settings(FULL), tokens=2**20)
    choice = choose(with_lora(SEVEN_B), long, node(H100, 8), 8)
    assert choice.taken is not None
    assert choice.taken.layout.tensor * choice.taken.layout.context > 1
    assert is_launched(choice.taken.layout)
    assert "does not launch it" not in choice.reason


def test_a_batch_that_cannot_be_kept_is_said():
    choice = choose(with_lora(SEVEN_B), lora_settings(FULL), node(H100, 8), 12)
    assert choice.notes == (
        "a global batch of 12 is no multiple of 8 data-parallel ranks, so it becomes 16: check the learning rate, or "
        "change the number of devices",
    )
    assert not choose(with_lora(SEVEN_B), lora_settings(FULL), node(H100, 8), 16).notes


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(UserError, match="nothing to train on"):
        choose(SEVEN_B, FULL, H100, 0)


def test_hybrid_sharding_is_measured_by_one_of_its_groups():
    seen = []

    def watched(geometry, job, layout):
        seen.append(layout)
        return plain_estimate(geometry, job, layout)

    choose(SEVEN_B, FULL, node(H100, 8, 2), estimate=watched, wishes=Wishes(strategy="hsdp"))
    assert {(layout.ranks, layout.nodes, layout.replicas) for layout in seen} == {(8, 1, 1)}


def test_over_a_slow_network_weights_are_gathered_inside_the_nodes():
    slow = node(H100, 8, 4, network=12.5e9)
    choice = choose(THIRTEEN_B, FULL, slow, 128)
    costs = {strategy_of(one.layout): one.cost.seconds for one in choice.considered if one.fits}
    assert costs["hsdp"] < costs["fsdp"]


@given(
    per_node=st.sampled_from([1, 2, 4, 8]),
    batch=st.sampled_from([8, 16, 64]),
    tokens=st.sampled_from([256, 1024, 4096]),
    method=st.sampled_from(["full", "lora", "qlora"]),
    device=st.sampled_from([H100, A100_40, RTX_4090, T4]),
)
@settings(max_examples=15, deadline=None)
def test_what_is_taken_fits_keeps_the_batch_and_is_the_cheapest(per_node, batch, tokens, method, device):
    job = replace(FULL, tokens=tokens)
    geometry = SEVEN_B if method == "full" else with_lora(SEVEN_B)
    job = {"full": job, "lora": lora_settings(job), "qlora": qlora_settings(job)}[method]
    choice = choose(geometry, job, node(device, per_node), batch)
    if choice.taken is None:
        assert not any(one.fits for one in choice.others)
        assert "needs" in choice.reason
        return
    assert choice.taken.memory.device_bytes <= 0.95 * device.memory_bytes
    assert Candidate(choice.taken.layout, choice.taken.settings).global_batch == batch
    offloads = choice.taken.layout.offload_optimizer
    alike = [one for one in choice.runners_up if one.layout.offload_optimizer == offloads]
    assert all(choice.taken.cost.seconds <= 1.03 * one.cost.seconds for one in alike)
    assert not offloads or not any(one.fits and not one.layout.offload_optimizer for one in choice.others)
    assert all(one.why for one in choice.considered)


def test_more_memory_never_costs_more():
    seconds = []
    for memory in (24, 32, 48, 80, 141):
        choice = choose(SEVEN_B, FULL, node(replace(H100, memory_bytes=memory * GIB), 8))
        seconds.append(choice.taken.cost.seconds)
    assert all(later <= 1.03 * earlier for earlier, later in pairwise(seconds))


def test_lora_on_the_defaults_counts_what_is_known():
    # Llama-2-7B, r 16 on q_proj and v_proj: 32 · 2 · 16 · (4096 + 4096).
    adapted = with_lora(SEVEN_B, 16)
    assert SEVEN_B.total == 6_738_415_616
    assert adapted.trained == 8_388_608
    assert with_lora(adapted, 8).trained == 4_194_304
