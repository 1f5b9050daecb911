"""The start that PiSSA and OLoRA take out of the base: kept beside the run, found on resume, undone at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.models.methods.lora import LoraSettings, attach_lora, resumed_settings
from hf_recipes.models.methods.lora_start import INITIAL_NAME, changes_base, load_initial, make_plain_lora
from hf_recipes.recipe.keys import LoraMethods
from hf_recipes.training.same_run import record_of_run

if TYPE_CHECKING:
    from torch import Tensor

START_SHA256 = "initial_adapter_sha256"


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


def start_facts(run: Path, method: str, start: str) -> dict[str, str]:
    """For run.json: the hash of what the adapter's start took out of the base, where there is such a start.

    Args:
        run: The run directory.
        method: Of the recipe.
        start: Its `init_lora_weights`.
    """
    file = run / INITIAL_NAME
    kept = method in LoraMethods and changes_base(start) and file.is_file()
    return {START_SHA256: sha256_of_file(file)} if kept else {}


def make_result_plain(run: Path, method: str, start: str, result: Path) -> None:
    """Turn a saved result whose start was taken out of the base into plain LoRA for the base as published; rank 0.

    Args:
        run: The run directory, which keeps the start.
        method: Of the recipe.
        start: Its `init_lora_weights`.
        result: The adapter's directory.
    """
    if method not in LoraMethods or not changes_base(start):
        return
    initial = load_initial(run)
    assert initial is not None, "kept when the run started"
    make_plain_lora(result, initial)
