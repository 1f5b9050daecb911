"""Steps, hours, money and energy: by hand, against published runs, and as things must move."""

from __future__ import annotations

import datetime
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from llama_geometry import llama, llama_2_7b, llama_3_8b, llama_32_3b

from hf_recipes.core.accelerators import find_accelerator, list_accelerators
from hf_recipes.core.errors import UserError
from hf_recipes.plan.compute import work_of
from hf_recipes.plan.cost import Interruptions, Power, compare_costs, cost_of, interrupted
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.prices import PURCHASES, list_prices, price_of
from hf_recipes.plan.schedule import plan_schedule
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.time import BetweenSteps, Measured, estimate_time, measured_from_events, measured_from_profile
from hf_recipes.plan.utilization import Band
from hf_recipes.profiling.facts import Throughput

FULL = TrainingSettings(method="full", trained_dtype="bfloat16", autocast_dtype=None, micro_batch=2, tokens=4096)
LORA = TrainingSettings(micro_batch=4, tokens=512)
A100, H100 = find_accelerator("a100-80g"), find_accelerator("h100")
ONE = Layout()
EIGHT = Layout(ranks=8, sharding="fsdp")


def estimate(geometry, settings, accelerator=A100, layout=ONE, rows=1000, **more):
    schedule = plan_schedule(rows, settings.micro_batch, settings.accumulation, layout.data_parallel, epochs=1)
    work = work_of([settings.tokens] * rows, settings.supervised_share)
    return estimate_time(geometry, settings, layout, accelerator, schedule, work, **more)


# ---- steps


@pytest.mark.parametrize(
    ("arguments", "steps_per_epoch", "steps"),
    [
        ({"rows": 100, "micro_batch": 4, "accumulation": 2, "data_parallel": 2, "epochs": 3.0}, 7, 21),
        ({"rows": 96, "micro_batch": 4, "accumulation": 2, "data_parallel": 2, "epochs": 3.0}, 6, 18),
        ({"rows": 100, "micro_batch": 8, "epochs": 0.5}, 13, 7),
        ({"rows": 100, "micro_batch": 8, "epochs": 3.0, "max_steps": 26}, 13, 26),
        ({"rows": 1, "micro_batch": 8, "accumulation": 4}, 1, 3),
    ],
)
def test_steps_are_counted_as_the_trainer_does(arguments, steps_per_epoch, steps):
    schedule = plan_schedule(**arguments)
    assert (schedule.steps_per_epoch, schedule.steps) == (steps_per_epoch, steps)
    assert schedule.epochs == (2.0 if "max_steps" in arguments else arguments.get("epochs", 3.0))


@examples(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 4))
def test_steps_are_those_of_a_real_trainer_loop(rows, micro_batch, accumulation):
    updates = pending = 0
    for first in range(0, rows, micro_batch):
        pending += 1
        if pending == accumulation or first + micro_batch >= rows:
            updates, pending = updates + 1, 0
    assert plan_schedule(rows, micro_batch, accumulation, epochs=1).steps == updates


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [((0, 1), "no training rows"), ((5, 0), "micro-batch: 0"), ((5, 1, 0), "accumulation: 0")],
)
def test_a_schedule_of_nothing_is_refused(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        plan_schedule(*arguments)
    with pytest.raises(UserError, match="number of epochs"):
        plan_schedule(5, 1, epochs=0)


# ---- time


@pytest.mark.parametrize(
    ("geometry", "settings", "accelerator", "layout", "tokens_per_second"),
    [
        # torchtune README, Llama 3.2 3B on one A100, packed to 4,096: cumulative rows.
        (llama_32_3b(), replace(FULL, loss="full"), A100, ONE, 7_075),
        (llama_32_3b(), replace(FULL, compiled=True), A100, ONE, 8_998),
        (llama_32_3b(), replace(FULL, compiled=True, checkpointing="all"), A100, ONE, 7_210),
        (llama_32_3b(lora_rank=64), replace(FULL, compiled=True, checkpointing="all"), A100, ONE, 8_210),
        (
            llama_32_3b(lora_rank=64),
            replace(FULL, compiled=True, checkpointing="all", quantization="nf4"),
            A100,
            ONE,
            8_035,
        ),
        # torchtitan, Llama 3.1 8B, FSDP on 8 H100, 2 × 8,192: eager and compiled, tokens a second and device.
        (llama_3_8b(), replace(FULL, tokens=8192, loss="full", checkpointing="every_2"), H100, EIGHT, 5_762),
        (
            llama_3_8b(),
            replace(FULL, tokens=8192, loss="full", checkpointing="every_2", compiled=True),
            H100,
            EIGHT,
            6_667,
        ),
        # MosaicML llm-foundry, MPT 7B (Llama's size), FSDP on 8 H100, 6 × 2,048.
        (llama_2_7b(), replace(FULL, micro_batch=6, tokens=2048), H100, EIGHT, 10_643),
    ],
    ids=["full", "compiled", "checkpointed", "lora", "qlora", "8b", "8b compiled", "mpt"],
)
def test_published_runs_lie_in_the_band(geometry, settings, accelerator, layout, tokens_per_second):
    found = estimate(geometry, settings, accelerator, layout, rows=960).tokens_per_second.times(1 / layout.ranks)
    assert found.low < tokens_per_second < found.high
    assert found.expected == pytest.approx(tokens_per_second, rel=0.3)


def test_parts_add_up_and_the_band_is_one():
    between = BetweenSteps(evaluations=2, eval_work=work_of([512] * 100), saves=3, save_bytes=1e9, disk_write=5e8)
    found = estimate(
        llama_2_7b(lora_rank=8),
        replace(LORA, quantization="nf4"),
        layout=Layout(ranks=2, sharding="ddp"),
        between=between,
    )
    assert found.hours.low < found.hours.expected < found.hours.high
    assert sum(found.parts.values()) == pytest.approx(found.hours.expected * 3600)
    assert found.parts["saving"] == 6.0
    assert {"compute", "dequantisation", "optimizer", "communication", "evaluation"} <= found.parts.keys()
    assert found.hours.expected * 3600 == pytest.approx(
        found.step_seconds.expected * found.schedule.steps + found.parts["evaluation"] + 6.0
    )
    assert 0 < found.utilization.low < found.utilization.expected < found.utilization.high < 0.8
    assert "published" in found.basis and "A100" in found.basis


@examples(deadline=None, max_examples=30)
@given(st.integers(1, 16), st.sampled_from([64, 512, 2048]), st.sampled_from(["off", "every_2", "all"]))
def test_more_work_never_takes_less_time(micro_batch, tokens, checkpointing):
    geometry = llama(512, 1024, 4, 8, 4, 1000, lora_rank=4)
    job = replace(LORA, micro_batch=micro_batch, tokens=tokens, checkpointing=checkpointing)
    step = estimate(geometry, job).step_seconds
    for more in (replace(job, micro_batch=micro_batch + 1), replace(job, tokens=2 * tokens)):
        assert estimate(geometry, more).step_seconds.expected >= step.expected
    assert estimate(geometry, replace(job, quantization="nf4")).step_seconds.expected > step.expected
    assert estimate(geometry, job, accelerator=find_accelerator("rtx-3090")).step_seconds.low > 0


def test_quantised_weights_cost_most_with_short_batches():
    geometry = llama_2_7b(lora_rank=8)

    def slowdown(rows):
        job = replace(LORA, micro_batch=rows)
        return (
            estimate(geometry, replace(job, quantization="nf4")).step_seconds.expected
            / estimate(geometry, job).step_seconds.expected
        )

    assert 1.0 < slowdown(16) < 1.02 < slowdown(1) < 1.3


def test_a_batch_of_a_few_tokens_waits_for_weights_or_for_python():
    # 7B: 2 passes over 13.5 GB at 2.04 TB/s are 13.2 ms, 32 layers of 135 operators and 64 pairs at 6 µs 33 ms.
    tiny = replace(LORA, micro_batch=1, tokens=8)
    eager = estimate(llama_2_7b(lora_rank=8), tiny).parts["compute"] / 1000
    assert eager == pytest.approx((32 * 135 + 64 * 18) * 6e-6)
    compiled = estimate(llama_2_7b(lora_rank=8), replace(tiny, compiled=True)).parts["compute"] / 1000
    assert compiled == pytest.approx(0.0132, rel=0.05)


def test_devices_share_the_work_and_talk():
    geometry = llama_3_8b()
    one = estimate(geometry, FULL, H100)
    eight = estimate(geometry, FULL, H100, EIGHT)
    assert eight.parts["compute"] == pytest.approx(one.parts["compute"] / 8, rel=0.01)
    assert eight.parts["optimizer"] < one.parts["optimizer"] / 60  # an eighth of the states, an eighth of the steps
    assert 0 < eight.parts["communication"] < eight.parts["compute"]
    slow = replace(H100, link=0.0)
    assert estimate(geometry, FULL, slow, EIGHT).parts["communication"] > 5 * eight.parts["communication"]
    offloaded = estimate(geometry, FULL, H100, replace(EIGHT, offload_optimizer=True))
    assert offloaded.parts["offload"] > 0 and "optimizer" not in offloaded.parts


def test_a_pipeline_idles():
    layout = Layout(ranks=4, pipeline=4)
    found = estimate(llama_3_8b(), replace(FULL, accumulation=12), H100, layout)
    assert found.parts["idle pipeline"] == pytest.approx(found.parts["compute"] * 3 / 12)


def test_padding_is_computed_but_no_use():
    plain = estimate(llama_2_7b(lora_rank=8), LORA)
    padded = estimate(llama_2_7b(lora_rank=8), LORA, padding_share=0.5)
    assert padded.hours.expected == pytest.approx(2 * plain.hours.expected, rel=0.01)
    assert padded.tokens_per_second.expected == pytest.approx(plain.tokens_per_second.expected / 2, rel=0.01)


def test_a_measured_speed_takes_the_defaults_place():
    # 1,000 rows of 512 tokens at 2,000 tokens a second.
    found = estimate(llama_2_7b(lora_rank=8), LORA, measured=Measured(tokens_per_second=2000.0, source="of run 7"))
    assert found.hours.expected == pytest.approx(1000 * 512 / 2000 / 3600)
    assert found.hours.high / found.hours.low == pytest.approx(1.1 / 0.9)
    assert "2,000 tokens/s, of run 7" in found.basis
    by_mfu = estimate(llama_2_7b(lora_rank=8), LORA, measured=Measured(mfu=0.4))
    assert by_mfu.arithmetic.useful / (by_mfu.hours.expected * 3600) == pytest.approx(0.4 * 312e12)
    with pytest.raises(UserError, match="tokens a second or an MFU"):
        estimate(llama_2_7b(), FULL, measured=Measured())


def test_a_run_tells_its_speed_in_its_events():
    note = {"kind": "note", "detector": "throughput", "tokens_per_second": 1234.0, "mfu": 0.31}
    events = [{"kind": "log", "loss": 1.0}, {**note, "tokens_per_second": 9.0}, note, {"kind": "note", "detector": "x"}]
    assert measured_from_events(events) == Measured(1234.0, 0.31, "measured in a run")
    assert measured_from_events(events[:1]) is None
    del note["mfu"]
    assert measured_from_events([note]) == Measured(1234.0, None, "measured in a run")


def test_a_profile_tells_the_speed_of_all_ranks():
    rates = dict.fromkeys((field.name for field in fields(Throughput)), 0.0)
    rates |= {"tokens": 100.0, "tokens_all_ranks": 210.0, "positions": 120.0, "mfu": 0.4}
    assert measured_from_profile({"throughput": asdict(Throughput(**rates))}) == Measured(
        pytest.approx(252.0), 0.4, "measured by hf-recipes profile"
    )
    for wrong in ({}, {"throughput": None}, {"throughput": {"tokens": 0, "tokens_all_ranks": 1}}):
        with pytest.raises(UserError, match=r"no profile\.json"):
            measured_from_profile(wrong)


def test_a_dtype_that_the_device_lacks_is_one_sentence():
    with pytest.raises(UserError, match="NVIDIA T4 has no known rate in bfloat16"):
        estimate(llama_2_7b(lora_rank=8), LORA, find_accelerator("t4"))
    half = replace(LORA, weights_dtype="float16", autocast_dtype="float16")
    assert estimate(llama_2_7b(lora_rank=8), half, find_accelerator("t4")).hours.expected > 0


# ---- cost


def test_prices_are_dated_sourced_and_of_known_devices():
    keys = {accelerator.key for accelerator in list_accelerators()}
    vendors = {each.source.split(" price list")[0] for each in list_prices()}
    assert len(vendors) >= 3
    assert {each.kind for each in list_prices()} == set(PURCHASES)
    for each in list_prices():
        assert each.key in keys
        assert 0.05 < each.usd_per_hour < 15
        assert datetime.date(2026, 1, 1) <= datetime.date.fromisoformat(each.date) <= datetime.date(2026, 11, 30)


def test_the_default_is_the_median_list_price_and_never_the_cheapest_of_two():
    rates = sorted(each.usd_per_hour for each in list_prices() if (each.key, each.kind) == ("h100", "on-demand"))
    price = price_of("h100")
    assert (price.cheapest, price.usd_per_hour, price.dearest) == (rates[0], rates[len(rates) // 2], rates[-1])
    assert "on-demand" in price.source and "2026" in price.source
    assert price_of("rtx-4090").usd_per_hour == 0.74
    assert price_of("gaudi-2") is None


def test_ones_own_price():
    assert price_of("gaudi-2", own=2.5).usd_per_hour == 2.5
    assert cost_of(A100, 4, Band(1, 2, 3), own_price=2.5).usd == Band(10, 20, 30)
    with pytest.raises(UserError, match="--price: -1 is no price"):
        price_of("h100", own=-1)


def test_interruptions_by_hand():
    # Two a day, each a quarter of an hour's restart and half of half an hour's save interval: 1 h of 24 is lost.
    often = Interruptions(per_day=2, restart_hours=0.25, save_hours=0.5)
    assert often.lost_hours == 0.5
    assert interrupted(23.0, often) == pytest.approx(24.0)
    with pytest.raises(UserError, match="leave no time to train"):
        interrupted(1.0, Interruptions(per_day=48, restart_hours=0.5))


@examples(deadline=None, max_examples=30)
@given(st.floats(0, 20), st.floats(0.01, 0.5), st.floats(0.01, 1))
def test_saving_more_often_never_costs_more(per_day, restart, save):
    seldom = Interruptions(per_day, restart, save)
    assert interrupted(10, replace(seldom, save_hours=save / 2)) <= interrupted(10, seldom)
    assert interrupted(10, seldom) >= 10


def test_spot_adds_interruptions_to_hours_and_price():
    hours = Band(5, 10, 20)
    spot, bought = cost_of(H100, 1, hours, purchase="spot", own_price=1.0), cost_of(H100, 1, hours, own_price=1.0)
    assert bought.hours == hours
    assert spot.usd.expected == spot.hours.expected == pytest.approx(interrupted(10, Interruptions()))


def test_energy():
    cost = cost_of(H100, 8, Band(1, 2, 4), power=Power(load=0.75, host=0.25, pue=1.2, usd_per_kwh=0.1))
    assert cost.kwh.expected == pytest.approx(2 * 8 * 0.7 * (0.75 + 0.25) * 1.2)
    assert cost.energy_usd.expected == pytest.approx(cost.kwh.expected / 10)
    assert cost_of(replace(H100, watts=0.0), 1, Band(1, 2, 4)).kwh is None
    assert cost_of(H100, 1, Band(1, 2, 4)).energy_usd is None


def test_devices_side_by_side_the_cheapest_first():
    runs = [(H100, 1, Band(1, 2, 3)), (find_accelerator("gaudi-3"), 1, Band(1, 1, 1)), (A100, 1, Band(2, 4, 6))]
    rows = compare_costs(runs, purchases=PURCHASES)
    assert [row.accelerator.key for row in rows][-1] == "gaudi-3" and rows[-1].usd is None
    priced = [row.usd.expected for row in rows[:-1]]
    assert priced == sorted(priced)
    # No spot price of the A100 is listed, so it has two rows, the H100 three.
    assert [(row.accelerator.key, row.purchase) for row in rows].count(("a100-80g", "spot")) == 0
    assert len(rows) == 6
