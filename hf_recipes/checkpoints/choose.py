"""Which checkpoint to resume from: the newest that verifies and is complete. Reads only, on one rank."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from hf_recipes.checkpoints.findings import some
from hf_recipes.checkpoints.manifest import DamagedManifest, Manifest, read_manifest, read_verified
from hf_recipes.checkpoints.verify import verify_checkpoint
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import world_size
from hf_recipes.core.run_directory import checkpoint_step, list_checkpoints

_RNG = re.compile(r"^rng_state_(\d+)\.pth$")


@dataclass(frozen=True)
class LastGood:
    """The newest good checkpoint (None: there is none), the newer ones passed over, each with its reason, and whether
    a manifest proved it."""

    path: Path | None
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    proven: bool = False


def last_good_checkpoint(output_dir: str | Path) -> LastGood:
    """Find the newest ``checkpoint-N`` that can be resumed from: every byte as its manifest says (without one: sound
    in form and values), and with optimizer, scheduler, random states and the Trainer's state, whose absence the
    Trainer would not mention.
    """
    skipped: list[tuple[Path, str]] = []
    for checkpoint in reversed(list_checkpoints(Path(output_dir))):
        reason, proven = _why_not(checkpoint)
        if reason is None:
            return LastGood(checkpoint, skipped, proven)
        skipped.append((checkpoint, reason))
    return LastGood(None, skipped)


def resolve_resume(value: str | Path | bool | None, output_dir: str | Path) -> Path | None:
    """Turn ``resume_from_checkpoint`` into a checkpoint that is known to be good, or None for a fresh start.

    Call it on one rank and share the result: it reads whole checkpoints.

    Args:
        value: None or False: start afresh; "last" or True: the newest good one in `output_dir`, the ones passed over
            are named; a path: that one and no other.

    Raises:
        UserError: there is no good checkpoint, or the one named is not good. A run never restarts from zero by itself.
    """
    if value is None or value is False or value == "":
        return None
    if value is True or value == "last":
        return _resume_last(Path(output_dir))
    path = Path(str(value))
    if not path.is_dir():
        raise UserError(f"resume_from_checkpoint: '{path}' is not there{_newest_hint(Path(output_dir))}.")
    reason, proven = _why_not(path)
    if reason is not None:
        siblings = path.absolute().parent if path.name.startswith("checkpoint-") else path
        raise UserError(f"resume_from_checkpoint: '{path}' cannot be resumed: {reason}{_newest_hint(siblings)}.")
    _tell(path, proven)
    return path


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
    proof = "every byte is as its manifest says" if proven else "sound in form and values, but no manifest proves it"
    logger.info("Resuming from %s: %s.", checkpoint, proof)
    written_by, now = _ranks(checkpoint), world_size()
    if written_by and written_by != now:
        logger.warning(
            "%s was written by %d processes and is resumed by %d: weights, optimizer and schedule continue, random "
            "states start anew, and the place in the data is counted in steps of the present global batch.",
            checkpoint,
            written_by,
            now,
        )


def _newest_hint(output_dir: Path) -> str:
    newest = last_good_checkpoint(output_dir).path
    return f"; the newest good one is '{newest}'" if newest else ""


def _why_not(checkpoint: Path) -> tuple[str | None, bool]:
    """Why this checkpoint cannot be resumed (None: it can), and whether a manifest proves it."""
    try:
        absent = _missing_for_resume(checkpoint)
        if absent:
            return f"without {some(absent)} it cannot be continued", False
        mark = read_verified(checkpoint)
        if mark and not mark["ok"]:
            return (
                f"it did not verify when it was written ({_first(mark.get('problems') or ['no reason kept'])})",
                False,
            )
        report = verify_checkpoint(checkpoint, "content")
    except (UserError, OSError) as error:
        return str(error).rstrip("."), False
    if not report.ok:
        return _first([str(problem) for problem in report.problems]), report.proven
    return None, report.proven


def _first(problems: list[str]) -> str:
    return problems[0] + (f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else "")


def _missing_for_resume(checkpoint: Path) -> list[str]:
    """Names of what the Trainer needs to continue exactly and does not find here."""
    names = {path.name for path in checkpoint.iterdir()}
    deepspeed = any(path.is_dir() for path in checkpoint.glob("global_step*"))
    absent = []
    if not _trainer_state_fits(checkpoint):
        absent.append("a trainer_state.json of its own step")
    if not deepspeed and not any(name.startswith("optimizer") for name in names):
        absent.append("optimizer.pt")
    if not deepspeed and "scheduler.pt" not in names:
        absent.append("scheduler.pt")
    return absent + _missing_random_states(checkpoint, names)


def _trainer_state_fits(checkpoint: Path) -> bool:
    try:
        step = read_json(checkpoint / "trainer_state.json")["global_step"]
        return checkpoint_step(checkpoint) == step
    except UserError:  # a checkpoint under a name of the user's
        return isinstance(step, int)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _missing_random_states(checkpoint: Path, names: set[str]) -> list[str]:
    ranks = _ranks(checkpoint)
    if ranks == 1:
        return [] if "rng_state.pth" in names else ["rng_state.pth"]
    # Without a manifest the number of ranks is not known: the files must at least be those of ranks 0, 1, 2 …
    count = ranks or max(2, 1 + max((int(match[1]) for name in names if (match := _RNG.match(name))), default=1))
    return [file for rank in range(count) if (file := f"rng_state_{rank}.pth") not in names]


def _ranks(checkpoint: Path) -> int | None:
    """How many processes wrote a checkpoint; without a manifest, 1 if it has the random state of a single one."""
    try:
        manifest: Manifest | None = read_manifest(checkpoint)
    except DamagedManifest:
        manifest = None
    if manifest:
        return manifest.world_size
    return 1 if (checkpoint / "rng_state.pth").is_file() else None
