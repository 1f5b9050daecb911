from __future__ import annotations

import pytest
from launched_ranks import LaunchedRanks
from sameness import Workplace


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of 30 steps, saved and evaluated at every tenth."""
    folder = tmp_path_factory.mktemp("strategies")
    ranks = LaunchedRanks(folder)
    yield Workplace(folder, ranks)
    ranks.close()


@pytest.fixture(scope="module")
def short_place(tmp_path_factory):
    """Runs of six steps, saved and evaluated at every second, of what torch alone can do."""
    folder = tmp_path_factory.mktemp("strategies")
    ranks = LaunchedRanks(folder, preload=())
    yield Workplace(folder, ranks, steps=6, saved_every=2)
    ranks.close()
