"""The cores of the affinity mask where there is one, else those of the machine."""

from __future__ import annotations

import os

from hf_recipes.core.cores import usable_cores
from hf_recipes.data import source_store
from hf_recipes.data.reading.source_spec import SourceSpec


def test_a_mask_counts_more_than_the_machine(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 9}, raising=False)
    assert usable_cores() == 3


def test_systems_without_masks_have_the_machines_cores(monkeypatch):
    """macOS and Windows, where data once was encoded by one process alone."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == 6
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(source_store, "find_files", lambda spec: None)
    assert source_store._processes(SourceSpec("somewhere"), None) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
