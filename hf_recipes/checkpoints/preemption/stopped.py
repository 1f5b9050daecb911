"""What a run that was asked to stop leaves behind to go on from, as its marks say it. Reads no checkpoint."""

from __future__ import annotations

from pathlib import Path

from hf_recipes.checkpoints.manifest import read_verified
from hf_recipes.checkpoints.verification.scan import MANIFEST_NAME
from hf_recipes.core.errors import CheckFailed, Preempted
from hf_recipes.core.run_directory import list_checkpoints

HOW_TO_GO_ON = "go on with --resume_from_checkpoint last"


def newest_marked(output_dir: Path) -> str | None:
    """The newest checkpoint that a resume may begin with, and how sure that is; None without one."""
    for checkpoint in reversed(list_checkpoints(output_dir)):
        if (mark := read_verified(checkpoint)) is not None:
            if mark["ok"]:
                return f"{checkpoint.name} (verified)"
        elif (checkpoint / MANIFEST_NAME).is_file():
            return f"{checkpoint.name} (written, not verified yet: a resume verifies it first)"
    return None


def unsaved_end(output_dir: Path, what: str) -> tuple[int, str]:
    """Exit code and sentence of a run that had to end without the save it should have made.

    Args:
        what: what happened.
    """
    if newest := newest_marked(output_dir):
        return Preempted.exit_code, f"{what}; the newest good checkpoint is {newest}: {HOW_TO_GO_ON}"
    return CheckFailed.exit_code, f"{what}, and there is no checkpoint to go on from"


def stopped_outside(reason: str) -> str:
    """The sentence of a run that was asked to stop while it was not training."""
    return (
        f"stopped by {reason} while nothing was being trained, so there was nothing to save: "
        "start it again with --resume_from_checkpoint auto, which starts afresh where there is no checkpoint yet"
    )


def saved_end(output_dir: Path, step: int, reason: str, verifies: bool) -> str:
    """The sentence of a run that stopped at `step` with a save.

    Args:
        verifies: whether the run verifies its checkpoints.

    Raises:
        CheckFailed: that save is not there, or did not verify.
    """
    checkpoint = output_dir / f"checkpoint-{step}"
    mark = read_verified(checkpoint) if checkpoint.is_dir() else None
    if not (checkpoint / MANIFEST_NAME).is_file() or (verifies and not (mark and mark["ok"])):
        why = "was not written whole" if mark is None else "did not verify"
        newest = newest_marked(output_dir)
        rest = (
            f"the newest good checkpoint is {newest}: {HOW_TO_GO_ON}" if newest else "there is no other to go on from"
        )
        raise CheckFailed(f"stopped at step {step} by {reason}, but {checkpoint.name} {why}; {rest}")
    how = "verified" if verifies else "not verified: verify_checkpoints is off"
    return f"stopped at step {step} by {reason}, saved in {checkpoint.name} ({how}); {HOW_TO_GO_ON}"
