"""Checkpoints to which nothing happened, of every kind of run, moved about in honest ways: all must be accepted."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from faults.children import call
from faults.killing import differences
from faults.mounts import Refused, read_only
from faults.tally import FOUND, REFUSED, SKIPPED, STUCK, Outcome
from faults.tiny_kinds import Kind, Place, run, unbroken

from hf_recipes.checkpoints.choose import last_good_checkpoint, resolve_resume
from hf_recipes.checkpoints.verification.verify import verify_checkpoint

STEPS = 6
GOOD = "good, untouched"
LEVELS = ("structure", "content", "reload")


def try_sound(kind: Kind, work: Path) -> Iterator[Outcome]:
    """One outcome for each way of moving the checkpoints of an unbroken run, and one for going on from a middle one."""
    reference = unbroken(kind, work, STEPS)
    for name, move in MOVES.items():
        begin = time.perf_counter()
        output = work / f"sound-{kind.name.replace(' ', '-')}" / name.replace(" ", "-")
        output.parent.mkdir(exist_ok=True)
        try:
            said = move(reference.output, output)
        except Refused as refusal:
            yield Outcome(GOOD, f"{kind.name}: {name}", SKIPPED, str(refusal))
            continue
        verdict = REFUSED if said else FOUND
        yield Outcome(GOOD, f"{kind.name}: {name}", verdict, said, time.perf_counter() - begin)
        shutil.rmtree(output)
    yield _goes_on(kind, reference, work)


def _goes_on(kind: Kind, reference: Place, work: Path) -> Outcome:
    """From the middle of the unbroken run to its end, all the same."""
    begin = time.perf_counter()
    place = Place(work / f"middle-{kind.name.replace(' ', '-')}")
    middle = STEPS // 2
    for step in range(1, middle + 1):
        shutil.copytree(reference.output / f"checkpoint-{step}", place.output / f"checkpoint-{step}")
    lines = reference.losses.read_text().splitlines(keepends=True)
    place.losses.write_text("".join(lines[:middle]))
    codes = run(kind, place, steps=STEPS, resume=True)
    said = f"codes {codes}: {place.said()}" if any(codes) else differences(place, reference, STEPS)
    fault = f"{kind.name}: goes on from the middle"
    return Outcome(GOOD, fault, STUCK if said else FOUND, said, time.perf_counter() - begin)


def objections(output: Path, newest: str) -> str:
    """What verification at each level, the choice, and a resume have against a run of good checkpoints."""
    for level in LEVELS:
        for checkpoint in sorted(output.glob("checkpoint-*")):
            if problems := verify_checkpoint(checkpoint, level).problems:
                return f"{checkpoint.name} at level {level}: {[str(problem) for problem in problems]}"
    choice = last_good_checkpoint(output)
    if choice.path != output / newest or choice.skipped or not choice.proven:
        return f"the choice is {choice}"
    return "" if resolve_resume("last", output) == output / newest else "a resume takes another one"


def _copied(
    copy: Callable[[Path, Path], object],
    original: Path,
    output: Path,
    during: Callable[[Path], AbstractContextManager[None]] = lambda output: nullcontext(),
) -> str:
    copy(original, output)
    with during(output):
        return call(partial(objections, output, f"checkpoint-{STEPS}"))


def _other_times(original: Path, output: Path) -> None:
    shutil.copytree(original, output, copy_function=shutil.copyfile)
    for number, path in enumerate(sorted(output.rglob("*"), reverse=True)):
        os.utime(path, (1_000_000 + number, 1_000_000 + number))


def _moved(original: Path, output: Path) -> None:
    shutil.copytree(original, output.with_name("before"))
    output.with_name("before").rename(output)


def _without_rights(original: Path, output: Path) -> None:
    shutil.copytree(original, output)
    for path in output.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)


def _without_marks(original: Path, output: Path) -> None:
    shutil.copytree(original, output)
    for mark in output.glob("checkpoint-*/verified.json"):
        mark.unlink()


MOVES: dict[str, Callable[[Path, Path], str]] = {
    "copied": partial(_copied, shutil.copytree),
    "copied with other times": partial(_copied, _other_times),
    "moved": partial(_copied, _moved),
    "without rights to write": partial(_copied, _without_rights),
    "on a read-only disk": partial(_copied, shutil.copytree, during=read_only),
    "not yet verified": partial(_copied, _without_marks),
}
