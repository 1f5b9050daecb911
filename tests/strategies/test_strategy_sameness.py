"""Each strategy trains the model that one process trains, saves it whole, and goes on where it was stopped."""

from __future__ import annotations

import pytest
from examined import cells, examine
from sameness import Cell

from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed
from hf_recipes.plan.strategy.names import Sizes, layout_of

pytestmark = pytest.mark.slow


def check(place, cell):
    row = examine(place, cell, resumes=cell.strategy != "tp")  # which saves no optimizer
    assert row["outcome"] == "same", row["why"]
    assert row["learned"] > 0.01, row  # a frozen model would be the same too


def test_a_strategy_trains_saves_and_resumes_as_one_process(short_place):
    check(short_place, Cell("fsdp", "lora"))


@pytest.mark.trials
@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.name)
def test_each_strategy_trains_saves_and_resumes_as_one_process(cell, place):
    if uses_deepspeed(layout_of(cell.strategy, cell.ranks, cell.nodes, Sizes(cell.tensor))):
        pytest.importorskip("deepspeed")
    if cell.method == "qlora":
        pytest.importorskip("bitsandbytes")
    check(place, cell)
