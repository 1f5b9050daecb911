"""A loss that is not a number, on one rank: every strategy decides as one process does, or says that it cannot."""

from __future__ import annotations

import pytest
from examined import TOLERANCE
from sameness import Cell, apart, curves, events_of

pytestmark = pytest.mark.slow
BAD_STEP = 4
SKIP = ("--watch.non_finite", "skip")


def alarms(run):
    return [event for event in events_of(run) if event["kind"] == "alarm" and event["detector"] == "non_finite"]


@pytest.mark.trials
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp_offload"])
def test_the_bad_step_is_skipped_alike(strategy, place):
    hook = "run_hooks:bad_batch"
    one = place.finished(Cell("alone", "lora", ranks=1), f"bad-alone-{strategy}", *SKIP, hooks=[[hook, BAD_STEP, 0]])
    run = place.finished(Cell(strategy, "lora"), f"bad-{strategy}", *SKIP, hooks=[[hook, BAD_STEP, 1]])
    (theirs,), (mine,) = alarms(one), alarms(run)
    for key in ("step", "decision", "update_dropped", "micro_batch"):
        assert mine[key] == theirs[key]
    assert (mine["step"], mine["decision"]) == (BAD_STEP + 1, "skip")
    # FSDP2 averages at each micro-batch, and this loss is spoilt where it is not seen: no rank must be named.
    assert (mine["what"], mine["bad_rank"]) == (("loss", 1) if strategy == "ddp" else ("gradient", None))
    found, expected = curves(run), curves(one)
    for name in ("loss", "grad_norm"):
        for values in (found, expected):
            values[name].pop(BAD_STEP + 1)
        assert apart(found[name], expected[name])["max"] < TOLERANCE


@pytest.mark.trials
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "zero3_offload"])
def test_under_deepspeed_the_run_stops_and_says_why(strategy, place):
    pytest.importorskip("deepspeed")
    name = f"bad-{strategy}"
    codes = place.run(Cell(strategy, "lora"), name, *SKIP, hooks=[["run_hooks:bad_batch", BAD_STEP, 1]])
    (alarm,) = alarms(place.folder / name)
    assert any(codes)
    assert (alarm["step"], alarm["decision"], alarm["update_dropped"]) == (BAD_STEP + 1, "stop", False)
    assert "hf-recipes: training was stopped" in place.log(name).read_text()
