"""What a run that met a fault has left: is a good checkpoint there, does it go on from it as if nothing had been?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from faults.at_rest import same_files, verified_problems
from faults.children import call
from faults.killing import PATHS_AND_TIMES, differences
from faults.tally import FOUND, REFUSED, STUCK, UNDETECTED
from faults.tiny_kinds import Kind, Place, run
from transformers import TrainerCallback

from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.checkpoints.manifest import read_verified
from hf_recipes.core.run_directory import checkpoint_step, list_checkpoints

STEPS = 6
LIMIT = 2


def judge_and_go_on(kind: Kind, place: Place, reference: Place, *, fresh: bool = False) -> tuple[str, str]:
    """The choice must be what the unbroken run wrote; going on from it must end as the unbroken run did.

    Args:
        fresh: where there is nothing good, a new start (said so, not by itself) is right.
    """
    choice = call(partial(last_good_checkpoint, place.output))
    if choice.path is None and not fresh:
        return REFUSED, f"nothing good is left: {choice.skipped}; {place.said()}"
    if choice.path and not same_files(choice.path, reference.output / choice.path.name, PATHS_AND_TIMES):
        return UNDETECTED, f"{choice.path} is chosen, and is not what the unbroken run wrote"
    lost = call(partial(_verified_but_bad, place.output))
    if lost:
        return UNDETECTED, f"marked as verified, and bad: {lost}"
    if choice.path and checkpoint_step(choice.path) == STEPS:  # it came to its end: there is nothing to go on to
        said = differences(place, reference, STEPS)
        return (STUCK, said) if said else (FOUND, "")
    codes = run(kind, place, steps=STEPS, limit=LIMIT, resume=choice.path is not None)
    said = f"codes {codes}: {place.said()}" if any(codes) else differences(place, reference, STEPS)
    return (STUCK, said) if said else (FOUND, "")


def _verified_but_bad(output: Path) -> list[str]:
    marks = {path: read_verified(path) for path in list_checkpoints(output)}
    verified = [path for path, mark in marks.items() if mark and mark["ok"]]
    return [f"{path.name}: {problems}" for path in verified if (problems := verified_problems(path))]


class StopAfter(TrainerCallback):
    """Ends a run by an error when a step's checkpoint has been saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise RuntimeError("stopped by the trial")
