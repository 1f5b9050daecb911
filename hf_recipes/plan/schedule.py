"""Steps, epochs and global batch of a run, as the Trainer counts them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hf_recipes.core.errors import UserError


@dataclass(frozen=True)
class Schedule:
    """What a run goes through.

    Attributes:
        rows: training rows (of packed data: packed ones).
        global_batch: rows of one step.
        steps_per_epoch, steps: optimizer steps.
        epochs: passes over the rows, a fraction where `steps` end in the middle of one.
    """

    rows: int
    global_batch: int
    steps_per_epoch: int
    steps: int
    epochs: float


def plan_schedule(
    rows: int,
    micro_batch: int,
    accumulation: int = 1,
    data_parallel: int = 1,
    *,
    epochs: float = 3.0,
    max_steps: int | None = None,
) -> Schedule:
    """Count the steps of a run (`Trainer.set_initial_training_values` of transformers 5.24: the last, smaller batch of
    an epoch makes a step of its own).

    Args:
        rows: training rows.
        micro_batch, accumulation, data_parallel: their product is the global batch.
        epochs: passes over the rows; three by the Trainer's default.
        max_steps: overrides `epochs` where above 0.

    Raises:
        UserError: there are no rows, or a number that must be positive is not.
    """
    for name, value in (("micro-batch", micro_batch), ("accumulation", accumulation), ("ranks", data_parallel)):
        if value < 1:
            raise UserError(f"{name}: {value} is too small: give 1 or more.")
    if rows < 1:
        raise UserError("There are no training rows to plan for: give the data, or --rows.")
    batches = ceil(rows / (micro_batch * data_parallel))
    per_epoch = max(1, ceil(batches / accumulation))
    given = max_steps is not None and max_steps > 0
    if not given and epochs <= 0:
        raise UserError(f"num_train_epochs: {epochs:g} is no number of epochs: give more than 0, or max_steps.")
    steps = int(max_steps or 0) if given else ceil(epochs * per_epoch)
    return Schedule(
        rows=rows,
        global_batch=micro_batch * accumulation * data_parallel,
        steps_per_epoch=per_epoch,
        steps=steps,
        epochs=steps / per_epoch if given else float(epochs),
    )
