"""SIGKILL while a run saves, over and over: each time a good checkpoint must be there, and the run must go on from it
as if it had never been stopped."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from faults.at_rest import same_files, verified_problems
from faults.children import call, ended, start_ranks, wait
from faults.tally import FOUND, REFUSED, STUCK, UNDETECTED, Outcome
from faults.tiny_kinds import Kind, Place, losses_of, run, train, unbroken

from hf_recipes.checkpoints.choose import last_good_checkpoint, resolve_resume
from hf_recipes.checkpoints.manifest import read_verified
from hf_recipes.core.errors import UserError
from hf_recipes.core.run_directory import checkpoint_step, list_checkpoints

LIMIT = 3
SAVE_SECONDS = 0.06  # about what a save with its verification takes here: the time over which kills are spread
OPERATIONS = 60  # about as many file operations as three saves make
IN_A_SAVE = "the newest checkpoint was not finished"
# What differs between two runs of the same kind: a path in the arguments, times in the marks.
PATHS_AND_TIMES = ("training_args.bin", "manifest.json", "verified.json")


@dataclass(frozen=True)
class Kill:
    """When, and whom: `operation` counts what a rank does to files of its run; without it, `saves` and `seconds` say
    how many checkpoints are begun and how long after. `victims` are ranks."""

    victims: tuple[int, ...]
    operation: int | None = None
    saves: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        when = f"{self.seconds * 1000:.0f} ms into save {self.saves}"
        return f"ranks {self.victims} at {f'file operation {self.operation}' if self.operation else when}"


def random_kill(kind: Kind, chance: random.Random) -> Kill:
    """Half by the clock, half before a file operation; of two ranks both (a lost machine), or one."""
    victims = (0,) if kind.ranks == 1 else chance.choice([(0, 1), (0, 1), (0,), (1,)])
    if chance.random() < 0.5:
        return Kill(victims, operation=chance.randint(1, OPERATIONS))
    return Kill(victims, saves=chance.randint(1, 2), seconds=chance.uniform(0, 1.5 * SAVE_SECONDS))


def label_of(kind: Kind) -> str:
    return f"SIGKILL in a save: {kind.name}"


def try_kills(kind: Kind, kills: int, steps: int, work: Path, chance: random.Random) -> list[Outcome]:
    """Kill runs of a kind `kills` times in all; each is killed until it nears its last step, then let go to it."""
    outcomes: list[Outcome] = []
    chain = 0
    while len(outcomes) < kills:
        chain += 1
        place = Place(work / f"killed-{kind.name.replace(' ', '-')}-{chain}")
        outcomes += _chain(kind, kills - len(outcomes), place, unbroken(kind, work, steps), steps, chance)
    return outcomes


def _chain(kind: Kind, kills: int, place: Place, reference: Place, steps: int, chance: random.Random) -> list[Outcome]:
    """Kill one run up to `kills` times, then let it end and compare it with the one that was never stopped."""
    outcomes: list[Outcome] = []
    good: list[int] = []
    label = label_of(kind)
    while len(outcomes) < kills and (not good or good[-1] < steps - 4):
        begin = time.perf_counter()
        kill = random_kill(kind, chance)
        codes = _killed_run(kind, place, kill, steps, resume=bool(good))
        verdict, said, good = call(partial(_judge, place, reference, good, codes))
        outcomes.append(Outcome(label, f"{place.directory.name}: {kill}", verdict, said, time.perf_counter() - begin))
        if verdict != FOUND:
            return outcomes
    codes = run(kind, place, steps=steps, limit=LIMIT, resume=bool(good))
    said = place.said() if any(codes) else differences(place, reference, steps)
    if said:
        outcomes[-1] = Outcome(label, outcomes[-1].fault, STUCK, f"codes {codes}; {said}", outcomes[-1].seconds)
    return outcomes


def _killed_run(kind: Kind, place: Place, kill: Kill, steps: int, resume: bool) -> list[int]:
    """Start the run (again) and kill it; the exit codes of its ranks."""
    place.directory.mkdir(parents=True, exist_ok=True)
    children = start_ranks(partial(_run_to_be_killed, kind, place, kill, steps, resume), place.log, kind.ranks)
    codes: dict[int, int] = {}
    if kill.operation is None:
        _wait_for_saves(place, kill.saves, children, codes)
        time.sleep(kill.seconds)
    else:
        while not codes:
            _collect(children, codes)
            time.sleep(0.001)
    for rank in kill.victims:
        if children[rank] not in codes:
            os.kill(children[rank], signal.SIGKILL)
    # A rank left behind must notice by itself; one that does not is killed, as a launcher would.
    left = [child for child in children if child not in codes]
    codes |= dict(zip(left, wait(left, seconds=30), strict=True))
    return [codes[child] for child in children]


def _run_to_be_killed(kind: Kind, place: Place, kill: Kill, steps: int, resume: bool) -> None:
    if kill.operation is not None and int(os.environ.get("RANK", "0")) == kill.victims[-1]:
        _kill_at(kill.operation, place.output)
    train(kind, place, steps=steps, limit=LIMIT, resume=resume)


def _kill_at(operation: int, directory: Path) -> None:
    """Let this process kill itself before the n-th thing that it does to a file in `directory`."""
    inside = str(directory)
    left = operation

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "open":
            touches = isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            touches = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
        if touches and str(arguments[0]).startswith(inside):
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def _wait_for_saves(place: Place, saves: int, children: list[int], codes: dict[int, int]) -> None:
    """Wait until the run has begun that many checkpoints beyond those that are there, or has ended."""
    begun = newest_step(place.output) + saves
    while newest_step(place.output) < begun and not codes:
        _collect(children, codes)
        time.sleep(0.001)


def _collect(children: list[int], codes: dict[int, int]) -> None:
    for child in children:
        if child not in codes and (code := ended(child)) is not None:
            codes[child] = code


def newest_step(output: Path) -> int:
    checkpoints = list_checkpoints(output)
    return checkpoint_step(checkpoints[-1]) if checkpoints else 0


def _judge(place: Place, reference: Place, before: list[int], codes: list[int]) -> tuple[str, str, list[int]]:
    """After a kill: the verdict, the evidence, and the steps of all good checkpoints; `before`: the same, earlier."""
    choice = last_good_checkpoint(place.output)
    good = [checkpoint_step(path) for path in list_checkpoints(place.output) if _is_good(path)]
    if choice.path is None:
        return (*_nothing_good(place, before), good)
    if 0 not in codes and -signal.SIGKILL not in codes:
        return STUCK, f"the run ended by itself with {codes}: {place.said()}", good
    if verified_problems(choice.path) or not _as_unbroken(choice.path, reference):
        return UNDETECTED, f"{choice.path} is not what the unbroken run wrote: {verified_problems(choice.path)}", good
    lost = [path.name for path in list_checkpoints(place.output) if _says_verified(path) and not _is_good(path)]
    if lost or checkpoint_step(choice.path) < max(before, default=0) or len(good) < min(LIMIT, len(before)):
        return REFUSED, f"verified work is lost: {lost}; good before {before}, now {good}", good
    return FOUND, IN_A_SAVE if _unfinished(place.output) else "", good


def _unfinished(output: Path) -> bool:
    """Whether the newest checkpoint was still being written or verified."""
    return not _says_verified(list_checkpoints(output)[-1])


def _nothing_good(place: Place, before: list[int]) -> tuple[str, str]:
    """Killed in the very first save there is nothing to go on from, and a resume says so."""
    if before:
        return REFUSED, f"no good checkpoint left of {before}: {last_good_checkpoint(place.output).skipped}"
    try:
        return UNDETECTED, f"nothing is good, yet a resume takes {resolve_resume('last', place.output)}"
    except UserError:
        return FOUND, IN_A_SAVE if list_checkpoints(place.output) else ""


def _is_good(checkpoint: Path) -> bool:
    try:
        return resolve_resume(checkpoint, checkpoint.parent) == checkpoint
    except UserError:
        return False


def _says_verified(checkpoint: Path) -> bool:
    """Whether it was verified; one that rotation was removing when the run was killed has no trainer_state.json."""
    mark = read_verified(checkpoint)
    return bool(mark and mark["ok"]) and (checkpoint / "trainer_state.json").exists()


def _as_unbroken(checkpoint: Path, reference: Place) -> bool:
    return same_files(checkpoint, reference.output / checkpoint.name, PATHS_AND_TIMES)


def differences(place: Place, reference: Place, steps: int) -> str:
    """How a run differs from the unbroken one: any loss that it ever met, the steps met, its last checkpoint."""
    if said := met_otherwise(place, reference, steps):
        return said
    last = place.output / f"checkpoint-{steps}"
    return "" if last.is_dir() and _as_unbroken(last, reference) else f"{last} differs from the unbroken run's"


def met_otherwise(place: Place, reference: Place, steps: int) -> str:
    """How what a run met differs from what the unbroken one did: any loss, or the steps."""
    expected = dict(losses_of(reference))
    met = losses_of(place)
    others = [(step, loss, expected.get(step)) for step, loss in met if loss != expected.get(step)]
    if others:
        return f"losses differ: (step, loss, unbroken) {others[:3]}"
    if {step for step, _ in met} != set(range(1, steps + 1)):
        return f"steps met: {sorted({step for step, _ in met})}"
    return ""
