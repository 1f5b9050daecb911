"""Whether a watcher ended the training, told as a failed check."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.errors import CheckFailed


def raise_if_stopped(trainer: Any) -> None:
    """Raise `CheckFailed` when a watcher (``tripped``) or the checkpoint keeper (``failed``) ended the training."""
    for callback in trainer.callback_handler.callbacks:
        reason = getattr(callback, "tripped", None) or getattr(callback, "failed", None)
        if reason:
            raise CheckFailed(f"training was stopped at step {trainer.state.global_step}: {reason}")
