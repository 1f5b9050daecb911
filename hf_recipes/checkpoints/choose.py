"""Which checkpoint to resume from: the newest that verifies and is complete. Reads only, on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hf_recipes.checkpoints.complete import is_zero_sharded, missing_for_resume, ranks_of
from hf_recipes.checkpoints.lock import was_left_locked
from hf_recipes.checkpoints.manifest import read_verified
from hf_recipes.checkpoints.verification.findings import some
from hf_recipes.checkpoints.verification.scan import MANIFEST_NAME
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.errors import UserError
from hf_recipes.core.events import read_events
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import world_size
from hf_recipes.core.run_directory import is_run, list_checkpoints

UNFINISHED = "its save was not finished: it has no manifest.json, which is written last"


@dataclass(frozen=True)
class LastGood:
    """The newest good checkpoint (None: there is none), the newer ones passed over, each with its reason, and whether
    a manifest proved it."""

    path: Path | None
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    proven: bool = False


def last_good_checkpoint(output_dir: str | Path) -> LastGood:
    """Find the newest ``checkpoint-N`` that can be resumed from: every byte as its manifest says, and with optimizer,
    scheduler, random states and the Trainer's state, whose absence the Trainer would not mention.

    Where manifests are written (a run of ours, or another checkpoint there has one), one without was killed before it
    was finished. Where none are, a checkpoint that is complete and sound in form and values is taken.
    """
    directory = Path(output_dir)
    unproven = not writes_manifests(directory)
    skipped: list[tuple[Path, str]] = []
    for checkpoint in reversed(list_checkpoints(directory)):
        reason, proven = _why_not(checkpoint, unproven_is_enough=unproven)
        if reason is None:
            return LastGood(checkpoint, skipped, proven)
        skipped.append((checkpoint, reason))
    return LastGood(None, skipped)


def is_unfinished(checkpoint: Path) -> bool:
    """Whether a ``checkpoint-N`` has no manifest where what saves there ends each with one: it was killed before, or is
    being written now."""
    is_save = checkpoint.name.startswith("checkpoint-") and not (checkpoint / MANIFEST_NAME).exists()
    return is_save and writes_manifests(checkpoint.absolute().parent)


def writes_manifests(output_dir: Path) -> bool:
    """Whether what saves checkpoints there ends each with a manifest: a run of ours, another checkpoint with one, or a
    `CheckpointKeeper` that was killed before its first."""
    if is_run(output_dir) or was_left_locked(output_dir):
        return True
    return any((path / MANIFEST_NAME).exists() for path in list_checkpoints(output_dir))


def resolve_resume(value: str | Path | bool | None, output_dir: str | Path) -> Path | None:
    """Turn ``resume_from_checkpoint`` into a checkpoint that is known to be good, or None for a fresh start.

    Call it on one rank and share the result: it reads whole checkpoints.

    Args:
        value: None or False: start afresh; "last" or True: the newest good one in `output_dir`, the ones passed over
            are named; "auto": the same, but a fresh start where no save was ever finished; a path: that one and no
            other.

    Raises:
        UserError: there is no good checkpoint, or the one named is not good, or it cannot be taken up by this number of
            ranks. A run never restarts from zero by itself.
    """
    if value is None or value is False or value == "":
        return None
    if value == "auto" and _nothing_saved_yet(Path(output_dir)):
        return None
    if value is True or value in ("last", "auto", "true"):
        return _resume_last(Path(output_dir))
    path = Path(str(value))
    if not path.is_dir():
        raise UserError(f"resume_from_checkpoint: '{path}' is not there{_newest_hint(Path(output_dir))}.")
    siblings = path.absolute().parent if path.name.startswith("checkpoint-") else path
    reason, proven = _why_not(path, unproven_is_enough=not writes_manifests(siblings))
    if reason is not None:
        raise UserError(f"resume_from_checkpoint: '{path}' cannot be resumed: {reason}{_newest_hint(siblings)}.")
    _tell(path, proven)
    return path


def _nothing_saved_yet(output_dir: Path) -> bool:
    """Whether "auto" starts at the beginning: no checkpoint there, or only the first one ever begun, cut short."""
    checkpoints = list_checkpoints(output_dir)
    if not checkpoints:
        logger.info("resume_from_checkpoint: auto: '%s' holds no checkpoint, so the run starts.", output_dir)
        return True
    first_try = len(checkpoints) == 1 and is_run(output_dir) and not (checkpoints[0] / MANIFEST_NAME).exists()
    if first_try and not any(event.get("kind") == "verify" for event in read_events(output_dir)):
        logger.warning(
            "resume_from_checkpoint: auto: the first save of this run, %s, was not finished, so nothing is kept of "
            "it: the run starts from the beginning.",
            checkpoints[0],
        )
        return True
    return False


def _resume_last(output_dir: Path) -> Path:
    last = last_good_checkpoint(output_dir)
    for checkpoint, reason in last.skipped:
        logger.warning("%s is passed over: %s.", checkpoint, reason)
    if last.path is None:
        found = f"none of its {len(last.skipped)} checkpoints is good" if last.skipped else "it holds no checkpoint"
        raise UserError(
            f"resume_from_checkpoint: nothing to resume in '{output_dir}', {found}: "
            "to start from the beginning, say so by leaving resume_from_checkpoint out."
        )
    _tell(last.path, last.proven)
    return last.path


def _tell(checkpoint: Path, proven: bool) -> None:
    """Say what is resumed, how far it is proven, and what another number of ranks loses.

    Raises:
        UserError: it cannot go on with this number of ranks.
    """
    written_by, now = ranks_of(checkpoint), world_size()
    other_ranks = written_by is not None and written_by != now
    if other_ranks and is_zero_sharded(checkpoint):
        raise UserError(
            f"resume_from_checkpoint: '{checkpoint}' was written by {written_by} processes, and DeepSpeed cannot cut "
            f"its optimizer state anew for {now}: start with --num_processes {written_by}."
        )
    if proven:
        logger.info("Resuming from %s: every byte is as its manifest says.", checkpoint)
    else:
        logger.warning(
            "Resuming from %s: sound in form and values, but no manifest proves it; a changed bit would not be seen.",
            checkpoint,
        )
    if other_ranks:
        logger.warning(
            "%s was written by %d process%s and is resumed by %d: weights, optimizer and schedule continue, random "
            "states (dropout) start anew; the place in the data is right as long as the global batch is the same.",
            checkpoint,
            written_by,
            "" if written_by == 1 else "es",
            now,
        )


def _newest_hint(output_dir: Path) -> str:
    newest = last_good_checkpoint(output_dir).path
    return f"; the newest good one is '{newest}'" if newest else ""


def _why_not(checkpoint: Path, *, unproven_is_enough: bool) -> tuple[str | None, bool]:
    """Why this checkpoint cannot be resumed (None: it can), and whether a manifest proves it."""
    try:
        mark = read_verified(checkpoint)
        if mark and not mark["ok"]:
            why = _first(mark.get("problems") or ["no reason kept"])
            return f"it did not verify when it was written ({why})", False
        if not unproven_is_enough and not (checkpoint / MANIFEST_NAME).exists():
            return UNFINISHED, False
        absent = missing_for_resume(checkpoint)
        if absent:
            return f"without {some(absent)} it cannot be continued", False
        report = verify_checkpoint(checkpoint, "content", own=True)
    except (UserError, OSError) as error:
        return str(error).rstrip("."), False
    if not report.ok:
        return _first([str(problem) for problem in report.problems]), report.proven
    return None, report.proven


def _first(problems: list[str]) -> str:
    return problems[0] + (f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else "")
