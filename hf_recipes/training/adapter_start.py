"""What LoRA's special starts need of a run: data for EVA, a kept start for PiSSA and OLoRA, two learning rates for
LoRA+."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.ranks import is_main
from hf_recipes.models.methods.lora import LoraSettings, attach_lora, resumed_settings
from hf_recipes.models.methods.lora_start import (
    INITIAL_NAME,
    changes_base,
    initial_adapter,
    load_initial,
    make_plain_lora,
    save_initial,
    start_from_data,
)
from hf_recipes.models.methods.loraplus import loraplus_optimizer
from hf_recipes.models.placement import place
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.names import describe
from hf_recipes.recipe.keys import LoraMethods
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.same_run import record_of_run

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from hf_recipes.training.rows import TrainingRows
    from hf_recipes.training.setup import Setup

START_SHA256 = "initial_adapter_sha256"
_EVA_BATCHES = 64
_EVA_ROWS = 8  # a batch must hold more supervised tokens than twice the rank


def attach_started_lora(model: Any, settings: LoraSettings, task_type: str, resume: Path | None) -> Any:
    """Put LoRA on `model`, started as the recipe says, or on resume as the run's first attempt was.

    Raises:
        UserError: the kept start of a resumed run is gone, or see `attach_lora`.
    """
    if resume is None:
        return attach_lora(model, settings, task_type=task_type)
    initial = _kept_start(resume, settings) if changes_base(settings.init_lora_weights) else None
    return attach_lora(model, resumed_settings(settings, resume), task_type=task_type, initial=initial)


def _kept_start(resume: Path, settings: LoraSettings) -> dict[str, Tensor]:
    """What was taken out of the base when the run began, held against the hash in its run.json."""
    directory = resume.parent
    initial, file = load_initial(directory), directory / INITIAL_NAME
    if initial is None:
        raise UserError(
            f"'{resume}' needs the start it was made by ({settings.init_lora_weights}), and {INITIAL_NAME} is not in "
            f"'{directory}': put it back, or start anew with another output_dir."
        )
    known = record_of_run(directory).get(START_SHA256)
    if known is not None and known != sha256_of_file(file):
        raise UserError(f"{file} is not the one this run began with (its hash differs): put that back, or start anew.")
    return initial


def start_facts(setup: Setup) -> dict[str, str]:
    """For run.json: the hash of what the adapter's start took out of the base, where there is such a start."""
    file = setup.run.path / INITIAL_NAME
    kept = _is_lora(setup) and changes_base(setup.ours.init_lora_weights) and file.is_file()
    return {START_SHA256: sha256_of_file(file)} if kept else {}


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


def check_loraplus(recipe: Recipe, layout: Layout) -> None:
    """Refuse LoRA+ where the Trainer takes no optimizer from elsewhere, before anything is loaded.

    Args:
        recipe: checked.
        layout: of the run.

    Raises:
        UserError: the layout is FSDP's, DeepSpeed's or tensor parallelism's, which build the optimizer over parameters
            of their own.
    """
    if recipe.get("loraplus_lr_ratio") is None or recipe.get("method", "lora") not in LoraMethods:
        return
    if layout.pipeline == 1 and (layout.sharding not in ("none", "ddp") or layout.tensor > 1):
        raise UserError(
            f"loraplus_lr_ratio does not go with {describe(layout)}, which makes the optimizer itself: leave it out, "
            "or take strategy: ddp."
        )


def optimizer_of_run(setup: Setup, model: Any) -> Optimizer | None:
    """LoRA+'s optimizer where the recipe gives ``loraplus_lr_ratio`` (see `check_loraplus`); None leaves it to the
    Trainer."""
    ratio = setup.ours.loraplus_lr_ratio
    if ratio is None or not _is_lora(setup):
        return None
    place(model, setup.arguments.device)
    return loraplus_optimizer(model, setup.arguments, ratio)


def make_result_plain(setup: Setup, directory: Path) -> None:
    """Turn a saved result whose start was taken out of the base into plain LoRA for the base as published; rank 0."""
    start = setup.ours.init_lora_weights
    if not _is_lora(setup) or not changes_base(start):
        return
    initial = load_initial(setup.run.path)
    assert initial is not None, "kept when the run started"
    make_plain_lora(directory, initial)
