"""What is said of a bad step. Plain text from plain data."""

from __future__ import annotations

import math

from hf_recipes.callbacks.bad_steps import BadSteps, Decision
from hf_recipes.callbacks.reading import BadMicroBatch, Reading

_NAMES_TOLD = 3


def what_happened(reading: Reading, bad: BadMicroBatch, micro_batches: int) -> str:
    """Step, micro-batch and rank of what was not finite."""
    place = "" if bad.micro_batch is None else f" of micro-batch {bad.micro_batch} of {micro_batches}"
    place += f" on rank {bad.rank}" if bad.rank is not None else " (on a rank unknown: it was averaged before)"
    norm_is_finite = reading.norm is None or math.isfinite(reading.norm)
    gradient = ", and so is the gradient" if bad.what == "loss" and not norm_is_finite else ""
    return f"Step {reading.step}: the {bad.what}{place} is not finite{gradient}; the logged loss may hide it."


def name_some(names: list[str]) -> str:
    """``2 tensors: a, b``; of many the first three."""
    first = ", ".join(names[:_NAMES_TOLD])
    if len(names) == 1:
        return f"1 tensor: {first}"
    return f"{len(names)} tensors{', the first' if len(names) > _NAMES_TOLD else ''}: {first}"


def which_weights(names: list[str]) -> str:
    """The parameters that are not finite, if any."""
    return f"The weights themselves are not finite ({name_some(names)})." if names else ""


def what_is_done(
    decision: Decision, step: int, counts: BadSteps, max_skips: int, update_dropped: bool, bad_weights: list[str]
) -> str:
    """What "skip" and "stop" do at `step`."""
    if not update_dropped:
        return "Training stops; DeepSpeed has already made or skipped this update itself, so verify the weights."
    kept = f"the weights are those of step {step - 1}"
    if decision == "skip":
        row = f"{counts.in_a_row} in a row, {max_skips} stop the run"
        return f"The update is skipped ({row}): {kept}, and the learning-rate schedule moves on."
    if bad_weights:
        return "Training stops: skipping this update cannot mend them."
    after = [f"{counts.in_a_row} such steps in a row"] if counts.in_a_row > 1 else []
    after += [f"{counts.restores} restores"] if counts.restores else []
    told = f" after {' and '.join(after)}," if after else ""
    return f"Training stops{told} before the update: {kept}."


def lost_steps(lost: int) -> str:
    """How many steps a restore takes back."""
    return "1 step of training is lost" if lost == 1 else f"{lost} steps of training are lost"


def where_it_is(files: list[str], problems: list[str], left_out: int, most: int) -> str:
    """Where the bad batch was written, why it was not, and what is left out because a run writes no more."""
    parts = []
    if files:
        more = f" and {len(files) - 1} more there" if len(files) > 1 else ""
        parts.append(f"The batch is in {files[0]}{more}.")
    if problems:
        parts.append(f"The batch could not be written ({'; '.join(problems)}).")
    if left_out:
        parts.append(f"Not written: {left_out} more, for a run writes {most} at most.")
    return " ".join(parts)
