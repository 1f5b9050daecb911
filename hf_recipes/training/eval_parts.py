"""Evaluation in parts, domain and general rows apart: forgetting shows while the run can still be changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from hf_recipes.callbacks.metrics_feed import add_metrics
from hf_recipes.training.suite_rows import PREFIX


class EvalParts(TrainerCallback):
    """Adds the loss over all parts to the log of the last one, as `eval_loss`: what picks the best checkpoint, and what
    watchers and curves of a run without parts know. It must stand before the callbacks that read it.

    Args:
        rows: rows of each part; a part's own loss is logged by the Trainer as ``eval_PART_loss``.

    Metrics: `eval_loss`, the parts' losses weighted by their rows, as the Trainer weighs batches.
    """

    def __init__(self, rows: Mapping[str, int]) -> None:
        self.rows = dict(rows)
        self._losses: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        for part in self.rows:
            if (loss := logs.get(f"eval_{part}_loss")) is not None:
                self._losses[part] = loss
        if len(self._losses) == len(self.rows):
            total = math.fsum(self.rows[part] * loss for part, loss in self._losses.items())
            self._losses = {}
            add_metrics(state, logs, {"eval_loss": total / sum(self.rows.values())})


def evaluate_in_parts(trainer: Any) -> None:
    """Let a trainer whose `eval_dataset` is a dict of parts log their common loss too: that of the data's own parts,
    which the rows of the recipe's `evaluation:` are none of, unless there are no others."""
    parts = trainer.eval_dataset
    if isinstance(parts, dict):
        rows = {name: len(part) for name, part in parts.items()}
        own = {name: count for name, count in rows.items() if not name.startswith(PREFIX)}
        trainer.callback_handler.callbacks.insert(0, EvalParts(own or rows))
