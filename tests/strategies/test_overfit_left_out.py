"""Where no rank has the whole model the overfit test is left out, which is told once."""

from __future__ import annotations

import pytest
from sameness import Cell

pytestmark = [pytest.mark.slow, pytest.mark.trials]


def test_sharded_runs_are_told_what_to_start_instead(short_place):
    run = short_place.finished(Cell("fsdp", "lora"), "overfit", "--overfit_check", "8")
    assert short_place.log("overfit").read_text().count("makes it on one device") == 1
    assert not (run / "overfit.json").exists()
