"""What LoRA's special starts need of a run: data for EVA, a kept start for PiSSA and OLoRA, two learning rates for
LoRA+."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.ranks import is_main
from hf_recipes.models.methods.lora_start import (
    INITIAL_NAME,
    changes_base,
    initial_adapter,
    save_initial,
    start_from_data,
)
from hf_recipes.models.methods.loraplus import loraplus_optimizer
from hf_recipes.models.placement import place
from hf_recipes.recipe.keys import LoraMethods

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hf_recipes.training.rows import TrainingRows
    from hf_recipes.training.setup import Setup

_EVA_BATCHES = 64
_EVA_ROWS = 8  # a batch must hold more supervised tokens than twice the rank


def _is_lora(setup: Setup) -> bool:
    return setup.ours.method in LoraMethods


def start_adapter_of_run(
    setup: Setup, model: Any, rows: TrainingRows, collate: Callable[[Any], dict[str, Any]], resume: Path | None
) -> None:
    """Finish the start of a run's adapter: EVA from its rows, and keep what PiSSA and OLoRA took out of the base.

    To be called on every rank, before anything reads the adapter's shapes; does nothing for other starts.

    Raises:
        UserError: EVA on a stream, or see `start_from_data`.
    """
    start = setup.ours.init_lora_weights if _is_lora(setup) else "default"
    if start == "eva" and resume is None:
        if rows.count == 0:
            raise UserError("init_lora_weights: eva reads the data before training, which a stream does not allow.")
        place(model, setup.arguments.device)
        start_from_data(model, _batches(rows, collate, setup))
    if changes_base(start) and is_main() and (resume is None or not (setup.run.path / INITIAL_NAME).exists()):
        save_initial(initial_adapter(model), setup.run.path)


def _batches(rows: TrainingRows, collate: Callable[[Any], dict[str, Any]], setup: Setup) -> list[dict[str, Any]]:
    """The first batches of the shuffled rows, enough for the directions to settle."""
    shuffled = rows.dataset.shuffle(seed=setup.arguments.seed)
    count = min(_EVA_BATCHES * _EVA_ROWS, len(shuffled))
    return [
        collate([shuffled[row] for row in range(first, min(first + _EVA_ROWS, count))])
        for first in range(0, count, _EVA_ROWS)
    ]


def optimizer_of_run(setup: Setup, model: Any) -> Optimizer | None:
    """LoRA+'s optimizer where the recipe gives ``loraplus_lr_ratio`` (see `check_loraplus`); None leaves it to the
    Trainer."""
    ratio = setup.ours.loraplus_lr_ratio
    if ratio is None or not _is_lora(setup):
        return None
    place(model, setup.arguments.device)
    return loraplus_optimizer(model, setup.arguments, ratio)
