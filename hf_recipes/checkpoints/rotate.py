"""Removes old checkpoints by step. Only good ones count, so a limit never leaves a run with none to go back to."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from hf_recipes.checkpoints.manifest import read_verified
from hf_recipes.checkpoints.verification.scan import MANIFEST_NAME, VERIFIED_NAME
from hf_recipes.core.run_directory import checkpoint_step, list_checkpoints


def choose_removals(
    good: Mapping[int, bool], limit: int | None, current: int, best: int | None = None, trial: int | None = None
) -> list[int]:
    """Steps to remove, ascending. But for the trial, nothing is removed before `limit` good ones are there.

    Args:
        good: step → whether that checkpoint counts towards `limit`.
        limit: how many good ones to keep; `current` and `best` are among them, and kept even beyond it. None: all.
        current: the one just written and found good. Newer ones, left by an earlier attempt, are not touched.
        best: step of the best checkpoint so far.
        trial: step of one that was saved only to see whether saving works; it does not count.
    """
    if trial is not None and trial < current and trial != best and trial in good:
        rest = {step: is_good for step, is_good in good.items() if step != trial}
        return sorted({trial, *choose_removals(rest, limit, current, best)})
    if limit is None:
        return []
    keep = {current} if best is None else {current, best}
    for step in sorted((step for step in good if good[step]), reverse=True):
        if len(keep) < limit:
            keep.add(step)
    if len(keep) < limit:
        return []
    return sorted(step for step in good if step < current and step not in keep)


def rotate_checkpoints(
    output_dir: Path,
    limit: int | None,
    current: int,
    best_checkpoint: str | None,
    *,
    verified_only: bool,
    trial: int | None = None,
) -> list[Path]:
    """Remove what `choose_removals` says from `output_dir`; returns what was removed.

    Args:
        verified_only: count only checkpoints with a good ``verified.json``; else a manifest is enough (for runs that
            do not verify).
    """
    checkpoints = {checkpoint_step(path): path for path in list_checkpoints(output_dir)}
    good = {step: _is_good(path, verified_only) for step, path in checkpoints.items()}
    best = checkpoint_step(Path(best_checkpoint)) if best_checkpoint else None
    removed = [checkpoints[step] for step in choose_removals(good, limit, current, best, trial)]
    for checkpoint in removed:
        remove_checkpoint(checkpoint, ignore_errors=True)
    return removed


def remove_checkpoint(checkpoint: Path, *, ignore_errors: bool = False) -> None:
    """Remove a checkpoint, its marks first, so that a kill in the middle leaves nothing that counts, or looks as if it
    could be resumed."""
    for mark in (VERIFIED_NAME, MANIFEST_NAME, "trainer_state.json"):
        (checkpoint / mark).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=ignore_errors)


def _is_good(checkpoint: Path, verified_only: bool) -> bool:
    mark = read_verified(checkpoint)
    if mark or verified_only:
        return bool(mark and mark["ok"])
    return (checkpoint / MANIFEST_NAME).is_file()
