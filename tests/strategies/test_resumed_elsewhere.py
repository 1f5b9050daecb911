"""A run goes on under another number of ranks, or another strategy of the same kind, with the numbers it would have
had; else it is refused before anything is loaded."""

from __future__ import annotations

import pytest
from examined import SAME, last_words
from sameness import Cell, apart, curves, result_of, without_progress

from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed
from hf_recipes.plan.strategy.names import layout_of

pytestmark = [pytest.mark.slow, pytest.mark.trials]
TAKEN_UP_AT = 10
AUTO = ("--resume_from_checkpoint", "auto")


def cell(words, method):
    strategy, ranks = words.split("×")
    return Cell(strategy, method, ranks=int(ranks), nodes=2 if strategy == "hsdp" else 1)


@pytest.fixture(scope="module")
def begun(place):
    """The unbroken run of a cell, made once."""
    known = {}

    def run(cell):
        if uses_deepspeed(layout_of(cell.strategy, cell.ranks, cell.nodes)):
            pytest.importorskip("deepspeed")
        if cell not in known:
            known[cell] = place.finished(cell, cell.name)
        return known[cell]

    return run


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("fsdp×2", "fsdp×4"),
        ("fsdp×4", "fsdp×2"),
        ("fsdp×2", "hsdp×4"),
        ("fsdp×2", "fsdp_offload×2"),
        ("ddp×2", "ddp×4"),
        ("zero1×2", "zero2×2"),
        ("zero2×2", "zero1×2"),
    ],
)
def test_a_run_goes_on_elsewhere(before, after, method, place, begun):
    whole = begun(cell(before, method))
    name = f"{whole.name}-to-{after}"
    without_progress(whole, place.folder / name, TAKEN_UP_AT)
    resumed = place.finished(cell(after, method), name, *AUTO)
    found, expected = curves(resumed), curves(whole)
    differences = {key: apart(found[key], expected[key])["max"] for key in found}
    assert max(differences.values()) < SAME, differences
    values = place.ranks.call("sameness:result_apart", str(resumed), str(whole))
    assert values["same_shapes"], values
    assert values["max"] < SAME, values


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("zero2×2", "zero2×4", "DeepSpeed cannot cut its optimizer state anew for 4: start with --num_processes 2"),
        ("zero3×2", "zero3×4", "DeepSpeed cannot cut its optimizer state anew for 4: start with --num_processes 2"),
        ("zero2×2", "zero3×2", "was written under ZeRO-1 or ZeRO-2, and ZeRO-3 cannot read"),
        ("zero2×2", "ddp×2", "was written under ZeRO-1 or ZeRO-2, and one process or DDP cannot read"),
        ("fsdp×2", "ddp×2", "was written under FSDP, and one process or DDP cannot read"),
        ("ddp×2", "fsdp×2", "was written under one process or DDP, and FSDP cannot read"),
        ("ddp×2", "zero2×2", "was written under one process or DDP, and ZeRO-1 or ZeRO-2 cannot read"),
    ],
)
def test_what_cannot_be_taken_up_is_refused(before, after, said, place, begun):
    whole = begun(cell(before, "lora"))
    name = f"{whole.name}-not-{after}"
    without_progress(whole, place.folder / name, TAKEN_UP_AT)
    codes = place.run(cell(after, "lora"), name, *AUTO)
    words = last_words(place.log(name), codes)
    assert any(codes)
    assert said in words
    assert "Traceback" not in place.log(name).read_text()


@pytest.mark.parametrize(
    ("strategy", "method"), [("fsdp", "lora"), ("fsdp", "full"), ("zero2", "lora"), ("zero3", "full")]
)
def test_a_run_that_was_killed_before_its_result_was_saved_only_saves_it(strategy, method, place, begun):
    whole = begun(Cell(strategy, method))
    name = f"{whole.name}-end"
    without_progress(whole, place.folder / name, place.steps)
    resumed = place.finished(Cell(strategy, method), name, *AUTO)
    assert "steps were trained already: the result is saved from" in place.log(name).read_text()
    assert place.ranks.call("sameness:result_apart", str(resumed), str(whole)) == {"same_shapes": True, "max": 0.0}
    files = [sorted(path.name for path in result_of(run).iterdir()) for run in (resumed, whole)]
    assert files[0] == files[1]
    assert not any(place.facts(resumed)["problems"].values())
