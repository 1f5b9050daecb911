"""The end that every run has: train, ask the watchers, save and verify the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.ranks import from_main
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.models.source import ModelSource
from hf_recipes.training.preempting import find_guard, raise_if_preempted
from hf_recipes.training.resume import train_from
from hf_recipes.training.setup import Setup
from hf_recipes.training.uneven_rows import tell_repeated_rows
from hf_recipes.training.watching import explained_ends


def train_and_save(
    trainer: Any, setup: Setup, source: ModelSource, checkpoint: Path | None, end: dict[str, Any]
) -> None:
    """Train from `checkpoint` or from the start, and save the result; `end` gets ``last_step`` and ``sentence``.

    Raises:
        UserError: the checkpoint does not fit the model.
        CheckFailed: a watcher ended the training, or what was saved does not verify.
        Preempted: the run was asked to stop and is saved; there is no result.
    """
    tell_repeated_rows(trainer)
    try:
        with explained_ends(setup.arguments):
            saver = train_from(trainer, checkpoint)
        raise_if_stopped(trainer)
        raise_if_preempted(trainer, setup.ours.verify_checkpoints != "off")
        setup.save_result(saver, source)
        from_main(lambda: write_cards(setup.run))
    finally:
        end["last_step"] = trainer.state.global_step
        if guard := find_guard(trainer):
            guard.close()
    end["sentence"] = f"finished {trainer.state.global_step} steps"


def write_cards(run: RunDirectory) -> None:
    """Our card in place of PEFT's empty template beside the result, and in the run."""
    from hf_recipes.export.card import write_model_card

    write_model_card(run.path, run.result)
    write_model_card(run.path, run.path)


def raise_if_stopped(trainer: Any) -> None:
    """Raise `CheckFailed` when a watcher (``tripped``) or the checkpoint keeper (``failed``) ended the training."""
    for callback in trainer.callback_handler.callbacks:
        reason = getattr(callback, "tripped", None) or getattr(callback, "failed", None)
        if reason:
            raise CheckFailed(f"training was stopped: {reason}")
