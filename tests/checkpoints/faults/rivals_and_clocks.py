"""Two runs in one directory, and clocks that go back."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from typing import Any

from faults.at_rest import same_files
from faults.children import call, start, wait
from faults.going_on import LIMIT, STEPS, StopAfter, judge_and_go_on
from faults.killing import PATHS_AND_TIMES, differences, met_otherwise
from faults.tally import FOUND, REFUSED, STUCK, UNDETECTED
from faults.tiny_kinds import FULL, Place, run, train
from transformers import TrainerCallback

from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.core.run_directory import checkpoint_step, list_checkpoints


def two_writers(place: Place, reference: Place, chance: random.Random) -> tuple[str, str]:
    """Two runs in one directory, which train alike save for the learning rate; no checkpoint may be of both."""
    other = Place(place.directory / "other")
    other.directory.mkdir()
    codes = run(FULL, other, steps=STEPS, learning_rate=3e-2)
    assert codes == [0], other.said()
    second = Place(place.directory / "second")
    second.directory.mkdir()
    second.output.symlink_to(place.output)
    place.output.mkdir()
    first = start(partial(train, FULL, place, steps=STEPS, limit=LIMIT), place.log)
    time.sleep(chance.uniform(0, 0.3))
    rival = start(partial(train, FULL, second, steps=STEPS, limit=LIMIT, learning_rate=3e-2), second.log)
    codes = wait([first, rival])
    choice = call(partial(last_good_checkpoint, place.output)).path
    wrote = [run.output / choice.name for run in (reference, other)] if choice else []
    if not any(same_files(choice, path, PATHS_AND_TIMES) for path in wrote):
        return UNDETECTED, f"{choice} is chosen, and neither run wrote it; codes {codes}"
    if codes == [0, 0]:  # on a fast machine one was at its end before the other began, and the later one's files stay
        last = place.output / f"checkpoint-{STEPS}"
        met = met_otherwise(place, reference, STEPS) or met_otherwise(second, other, STEPS)
        whole = any(same_files(last, run.output / last.name, PATHS_AND_TIMES) for run in (reference, other))
        return (FOUND, "") if whole and not met else (STUCK, f"one run disturbed the other: {met or last}")
    if codes[0] == 0 and (said := differences(place, reference, STEPS)):
        return STUCK, f"the first run was disturbed: {said}"
    return (FOUND, "") if 0 in codes else (STUCK, f"{codes}: {place.said()} / {second.said()}")


def file_times_go_back(place: Place, reference: Place, chance: random.Random) -> tuple[str, str]:
    """All files and directories get times in any order, some before 1980: neither choice nor rotation may heed them."""
    stop = chance.randint(2, STEPS - 2)
    run(FULL, place, steps=STEPS, limit=LIMIT, before=[StopAfter(stop)])
    for path in [place.output, *place.output.rglob("*")]:
        when = chance.uniform(0, 2_000_000_000)
        os.utime(path, (when, when))
    choice = call(partial(last_good_checkpoint, place.output)).path
    if choice is None or checkpoint_step(choice) != stop:
        return REFUSED, f"{choice} is chosen, not checkpoint-{stop}"
    verdict, said = judge_and_go_on(FULL, place, reference)
    return _kept_by_step(place) if verdict == FOUND else (verdict, said)


class ClockGoesBack(TrainerCallback):
    """From a step on the time of day is two days earlier, for this process."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            now = time.time
            time.time = lambda: now() - 172_800


def time_of_day_goes_back(place: Place, reference: Place, chance: random.Random) -> tuple[str, str]:
    codes = run(FULL, place, steps=STEPS, limit=LIMIT, before=[ClockGoesBack(chance.randint(1, STEPS - 1))])
    if codes != [0] or (said := differences(place, reference, STEPS)):
        return STUCK, f"codes {codes}; {said if codes == [0] else place.said()}"
    return _kept_by_step(place)


def _kept_by_step(place: Place) -> tuple[str, str]:
    kept = [checkpoint_step(path) for path in list_checkpoints(place.output)]
    right = list(range(STEPS - LIMIT + 1, STEPS + 1))
    return (FOUND, "") if kept == right else (REFUSED, f"rotation kept {kept}, not {right}")
