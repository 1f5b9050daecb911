"""The measurement on one process: sizes that all ranks share evenly, and an end where messages take long."""

from __future__ import annotations

import pytest
import torch

from hf_recipes.doctor.network import measure
from hf_recipes.doctor.network.curve import Timing


@pytest.mark.parametrize(("ranks", "found"), [(2, [1024, 4096]), (3, [1032, 4104]), (8, [1024, 4096])])
def test_sizes_are_shared_evenly(ranks, found):
    assert measure._even([1024, 4096], ranks) == found
    assert all(size % (4 * ranks) == 0 for size in measure._even([1, 1000, 12345], ranks))


def test_a_collective_that_takes_long_is_not_measured_at_larger_sizes(monkeypatch):
    asked = []

    def slow(collective, size, device):
        asked.append(size)
        return Timing(collective, size, size / 1000, 2)

    monkeypatch.setattr(measure, "_time", slow)
    found = list(measure._sweep("all_reduce", [1000, 3000, 9000, 27000], torch.device("cpu")))
    assert [timing.size_bytes for timing in found] == asked == [1000, 3000]
