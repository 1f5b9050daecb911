"""Storages followed by part and phase."""

from __future__ import annotations

import torch

from hf_recipes.plan.trace.hidden import hidden_on
from hf_recipes.plan.trace.storages import StorageTracker, tensor_bytes


def test_what_is_released_counts_no_more_and_views_count_once() -> None:
    tracker = StorageTracker()
    tracker.begin("one")
    tracker.part = "activations"
    with tracker:
        kept = torch.zeros(100)
        view = kept[:50].view(5, 10)
        gone = torch.zeros(1000)
        del gone
        tracker.begin("two")
        more = torch.zeros(10)
    assert tracker.live["activations"] == 440
    assert sum(tracker.peaks["one"].values()) == 4400
    assert sum(tracker.peaks["two"].values()) == 440
    assert tensor_bytes([kept, view, more]) == 440


def test_sizes_are_rounded_up_to_the_granularity() -> None:
    tracker = StorageTracker(granularity=512)
    tracker.assign([torch.zeros(1)], "weights")
    kept = torch.zeros(129)
    tracker.assign([kept], "weights")
    assert tracker.live["weights"] == 1024  # the first one is gone


def test_what_an_operation_hides_belongs_to_the_peak_alone() -> None:
    tracker = StorageTracker(hidden_on("cpu"))
    x = torch.zeros(10, 100)
    tracker.assign([x], "weights")
    tracker.begin("only")
    with tracker:
        kept = x.logsumexp(-1)
    # Exponentials of x, maxima, and the result twice: 4000 + 2 · 40 hidden, 40 kept.
    assert tracker.peaks["only"]["temporaries"] == 4080
    assert sum(tracker.live.values()) == 4040
    del kept
