"""The trials of runs that meet something else than a kill while they save."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults.bad_disks import disk_fills, file_size_limit, turns_read_only
from faults.going_on import STEPS
from faults.mounts import Refused
from faults.rivals_and_clocks import file_times_go_back, time_of_day_goes_back, two_writers
from faults.tally import FOUND, SKIPPED, Outcome
from faults.tiny_kinds import FULL, LORA, SHARDED, TWO_RANKS, Kind, Place, unbroken
from faults.wrong_saves import WRONG_SAVES, wrong_save


@dataclass(frozen=True)
class Trial:
    """`work` gets a place for the run, the unbroken run of its kind, and the source of chance; it returns a verdict and
    the evidence."""

    kind: str
    fault: str
    of: Kind
    work: Callable[[Place, Place, random.Random], tuple[str, str]]


def trials(each: int) -> Iterator[Trial]:
    """All of them, `each` of those whose place in the run is left to chance."""
    for number in range(each):
        for kind in (FULL, LORA, *([TWO_RANKS] if number % 3 == 0 else [])):
            yield Trial("full disk", f"{kind.name}, {number}", kind, partial(disk_fills, kind))
            yield Trial("no file beyond a size", f"{kind.name}, {number}", kind, partial(file_size_limit, kind))
    for number in range(max(2, each // 2)):
        yield Trial("two writers", f"{number}", FULL, two_writers)
        yield Trial("read-only directory", f"{number}", FULL, turns_read_only)
        yield Trial("clock goes back", f"file times, {number}", FULL, file_times_go_back)
        yield Trial("clock goes back", f"time of day, {number}", FULL, time_of_day_goes_back)
    for kind in (FULL, LORA, SHARDED):
        for name, change in WRONG_SAVES.items():
            yield Trial("wrong bytes saved", f"{kind.name}: {name}", kind, partial(wrong_save, kind, change))


def try_running(trial: Trial, number: int, work: Path, chance: random.Random) -> Outcome:
    """One trial, in a directory of its own."""
    begin = time.perf_counter()
    place = Place(work / f"running-{number}")
    place.directory.mkdir()
    try:
        verdict, said = trial.work(place, unbroken(trial.of, work, STEPS), chance)
    except Refused as refusal:
        verdict, said = SKIPPED, str(refusal)
    if verdict == FOUND:
        shutil.rmtree(place.directory)
    return Outcome(trial.kind, trial.fault, verdict, said, time.perf_counter() - begin)
