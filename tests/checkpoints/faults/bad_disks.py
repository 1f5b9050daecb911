"""Runs whose disk is full, or not writable any more, while they save."""

from __future__ import annotations

import random
import resource
from functools import partial
from typing import Any

from faults.children import call
from faults.going_on import LIMIT, STEPS, StopAfter, judge_and_go_on
from faults.mounts import read_only, small_disk
from faults.tally import REFUSED, UNDETECTED
from faults.tiny_kinds import FULL, Kind, Place, run
from transformers import TrainerCallback

from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.core.run_directory import checkpoint_step


def _sizes(reference: Place) -> tuple[int, int]:
    """Bytes of a whole checkpoint, and of its largest file."""
    sizes = [file.stat().st_size for file in (reference.output / f"checkpoint-{STEPS}").iterdir()]
    return sum(sizes), max(sizes)


def disk_fills(kind: Kind, place: Place, reference: Place, chance: random.Random) -> tuple[str, str]:
    """The disk has room for a part of a checkpoint, up to three and a half; then somebody frees it."""
    whole, _ = _sizes(reference)
    room = chance.uniform(0.1, 3.5)
    with small_disk(place.output, int(room * whole)) as enlarge:
        run(kind, place, steps=STEPS, limit=LIMIT)
        enlarge()
        return judge_and_go_on(kind, place, reference, fresh=room < 2)


class LimitFileSize(TrainerCallback):
    """From a step on, no file may grow beyond a size: what a quota or a full disk does, and needs no rights."""

    def __init__(self, step: int, limit_bytes: int) -> None:
        self.step = step
        self.limit_bytes = limit_bytes

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def file_size_limit(kind: Kind, place: Place, reference: Place, chance: random.Random) -> tuple[str, str]:
    _, largest = _sizes(reference)
    step = chance.randint(1, STEPS)
    # A kilobyte is left, so that the losses, which the judge needs, can be written.
    limit = LimitFileSize(step, chance.choice([chance.randrange(1024, largest), chance.randrange(1024, 8192)]))
    codes = run(kind, place, steps=STEPS, limit=LIMIT, before=[limit])
    if limit.limit_bytes < largest and not any(codes):
        return UNDETECTED, f"the run ended as if nothing was, with {limit.limit_bytes} bytes from step {step} on"
    return judge_and_go_on(kind, place, reference, fresh=step <= 2)


def turns_read_only(place: Place, reference: Place, chance: random.Random) -> tuple[str, str]:
    """A directory that turns read-only: what is there stays good, the run cannot write and stops, and goes on later."""
    stop = chance.randint(1, STEPS - 2)
    run(FULL, place, steps=STEPS, limit=LIMIT, before=[StopAfter(stop)])
    with read_only(place.output):
        choice = call(partial(last_good_checkpoint, place.output))
        if choice.path is None or checkpoint_step(choice.path) != stop:
            return REFUSED, f"read-only, {choice} is chosen"
        codes = run(FULL, place, steps=STEPS, limit=LIMIT, resume=True)
        if codes == [0]:
            return UNDETECTED, "the run ended well without having written anything"
    return judge_and_go_on(FULL, place, reference)
