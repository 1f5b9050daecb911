"""Each strategy trains the model that one process trains, saves it whole, and goes on where it was stopped."""

from __future__ import annotations

import pytest
from examined import SAME, TOLERANCE, cells, examine
from sameness import Cell, apart, curves, events_of

from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed
from hf_recipes.plan.strategy.names import Sizes, layout_of

pytestmark = pytest.mark.slow
STARTED_ELSEWHERE = 0.05  # nats; two starts were 0.018 and 0.023 apart


def check(place, cell):
    row = examine(place, cell, resumes=cell.strategy != "tp")  # which saves no optimizer
    if (cell.strategy, cell.method) == ("tp", "lora"):
        # PEFT draws the start of an adapter over cut matrices from other numbers; its gradients are those of the whole
        # model (training/test_cut_lora.py). All else is as it should be.
        assert row["verified"] and row["checkpoints"] and row["values"]["same_shapes"], row["why"]
        assert row["loss"]["max"] < STARTED_ELSEWHERE, row["why"]
    else:
        assert row["outcome"] == "same", row["why"]
    assert row["learned"] > 0.01, row  # a frozen model would be the same too


def test_a_strategy_trains_saves_and_resumes_as_one_process(short_place):
    """The sample: a run of FSDP2 that is killed and gone on with is, all in all, that of one process."""
    cell, one = Cell("fsdp", "lora"), short_place.alone("lora")
    assert all(code < 0 for code in short_place.run(cell, "fsdp", hooks=[["run_hooks:killed", 3]]))
    run = short_place.finished(cell, "fsdp", "--resume_from_checkpoint", "auto")
    found, expected = curves(run), curves(one)
    assert {name: apart(found[name], expected[name])["max"] < TOLERANCE for name in found} == dict.fromkeys(found, True)
    values = short_place.ranks.call("sameness:result_apart", str(run), str(one))
    assert values["same_shapes"]
    assert values["max"] < SAME
    assert verify_checkpoint(run / "adapter").ok
    assert [event["resumed_from"] for event in events_of(run) if event["kind"] == "begin"] == [None, 2]


@pytest.mark.trials
@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.name)
def test_each_strategy_trains_saves_and_resumes_as_one_process(cell, place):
    if uses_deepspeed(layout_of(cell.strategy, cell.ranks, cell.nodes, Sizes(cell.tensor))):
        pytest.importorskip("deepspeed")
    if cell.method == "qlora":
        pytest.importorskip("bitsandbytes")
    check(place, cell)
