"""Removes old checkpoints by step. Only verified ones count, so a limit never leaves a run with none that is good."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from hf_recipes.checkpoints.manifest import read_manifest_exists, read_verified
from hf_recipes.core.run_directory import checkpoint_step, list_checkpoints


def choose_removals(counts: Mapping[int, bool], limit: int, current: int, best: int | None = None) -> list[int]:
    """Steps to remove, ascending.

    Args:
        counts: step → whether the checkpoint is verified and so counts towards `limit`.
        limit: how many verified checkpoints to keep; `current` and `best` are among them, and kept even beyond it.
        current: the one just verified. Newer ones (left by an earlier attempt) are not touched.
        best: step of the best checkpoint so far.
    """
    keep = {current} | ({best} if best is not None else set())
    for step in sorted((step for step, verified in counts.items() if verified), reverse=True):
        if len(keep) >= limit:
            break
        keep.add(step)
    oldest_counted = min((step for step in keep if counts.get(step)), default=current)
    enough = len(keep) >= limit
    return sorted(
        step
        for step, verified in counts.items()
        if step < current and step not in keep and (verified or enough or step < oldest_counted)
    )
