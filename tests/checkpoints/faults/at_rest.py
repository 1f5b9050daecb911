"""Damages checkpoints at rest, and judges what verification and choice make of them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from faults.catalogue import Fault
from faults.changes import MARKS
from faults.tally import FOUND, REFUSED, UNDETECTED, Outcome

from hf_recipes.checkpoints.choose import last_good_checkpoint, resolve_resume
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.errors import UserError


def try_at_rest(fault: Fault, pristine: Path, work: Path, label: str = "") -> Outcome:
    """Put `fault` into the newest of the checkpoints of a copy of `pristine`, under `work`, and ask for a good one."""
    begin = time.perf_counter()
    output = work / "run"
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(pristine, output)
    if fault.bare:
        for mark in MARKS:
            for file in output.glob(f"checkpoint-*/{mark}"):
                file.unlink()
    *older, newest = sorted(output.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    fault.apply(newest)
    verdict, said = _judge_harmful(fault, older, newest, pristine) if fault.harmful else _judge_harmless(newest)
    return Outcome(fault.kind, f"{label}: {fault.name}", verdict, said, time.perf_counter() - begin)


def _judge_harmless(newest: Path) -> tuple[str, str]:
    problems = verified_problems(newest)
    choice = last_good_checkpoint(newest.parent)
    if problems or choice.path != newest:
        return REFUSED, f"verify: {problems}; passed over: {choice.skipped}"
    return FOUND, ""


def _judge_harmful(fault: Fault, older: list[Path], newest: Path, pristine: Path) -> tuple[str, str]:
    if not fault.by_choice_only and not verified_problems(newest):
        return UNDETECTED, "verify_checkpoint finds no problem"
    choice = last_good_checkpoint(newest.parent)
    if choice.path == newest:
        return UNDETECTED, "last_good_checkpoint chooses it"
    if choice.path != older[-1] or not same_files(
        choice.path, pristine / choice.path.name, MARKS if fault.bare else ()
    ):
        return REFUSED, f"not the good one before it, but {choice.path}: {choice.skipped}"
    if (newest, choice.skipped[0][1]) != choice.skipped[0] or not choice.skipped[0][1]:
        return UNDETECTED, f"passed over without a reason: {choice.skipped}"
    for checkpoint in older:
        shutil.rmtree(checkpoint)
    if fault.alone_in_a_run:
        (newest.parent / "run.json").write_text("{}")
    return _refused_alone(newest)


def _refused_alone(newest: Path) -> tuple[str, str]:
    """With no good one left, a resume is refused in one sentence: it never starts from zero."""
    try:
        chosen = resolve_resume("last", newest.parent)
    except UserError as error:
        sentence = str(error)
        return (FOUND, "") if sentence and "\n" not in sentence else (UNDETECTED, f"no sentence: {sentence!r}")
    return UNDETECTED, f"alone, resolve_resume gives {chosen}"


def verified_problems(checkpoint: Path) -> list[str]:
    """What `verify_checkpoint` has against a checkpoint."""
    try:
        return [str(problem) for problem in verify_checkpoint(checkpoint).problems]
    except UserError as error:
        return [str(error)]


def same_files(one: Path, other: Path, but: tuple[str, ...] = ()) -> bool:
    """Whether two directories hold the same files, byte for byte; those named in `but` are left out, and staged files,
    which a kill leaves and nobody reads."""
    if not other.is_dir():
        return False
    names = {path.name for directory in (one, other) for path in directory.iterdir()} - set(but)
    return all(
        (one / name).is_file() and (other / name).is_file() and (one / name).read_bytes() == (other / name).read_bytes()
        for name in names
        if not (name.startswith(".") and name.endswith(".tmp"))
    )
