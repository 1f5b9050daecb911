"""How a watcher's numbers reach the log: `events.jsonl`, `state.log_history` and every tracker, under one name each.

`Trainer.log` hands one dict to all callbacks in turn, trackers (`report_to`) before the user's own. So whatever must
reach them all has to be in it before the first of them is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback


class MetricGiver:
    """A watcher with numbers for the log; put it before `TrainerCallback` among the bases.

    Alone in a Trainer it adds them itself: they then reach `state.log_history` and the callbacks behind it.
    `feed_metrics` brings them to all.
    """

    def metrics(self) -> dict[str, float]:
        """The numbers to log now, finite ones only, under the names of docs/trackers.md.

        Asked again before the next step ends, it gives the same.
        """
        raise NotImplementedError

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the numbers to a training log, if a feed has not done so before."""
        if is_training_log(kwargs["logs"]):
            add_metrics(state, kwargs["logs"], self.metrics())


class MetricsFeed(TrainerCallback):
    """Stands first among a Trainer's callbacks and puts every `MetricGiver`'s numbers into the log for all others."""

    def __init__(self, handler: Any) -> None:
        # Looked up at each log: on resume the Trainer replaces callbacks by new instances.
        self._handler = handler

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not is_training_log(kwargs["logs"]):
            return
        for callback in self._handler.callbacks:
            if isinstance(callback, MetricGiver):
                add_metrics(state, kwargs["logs"], callback.metrics())


def feed_metrics(trainer: Any) -> None:
    """Let the numbers of a Trainer's watchers reach all its trackers; call it once, any time before `train()`.

    The progress bar's own lines stay as short as they were: what prints stands before the feed.
    """
    handler = trainer.callback_handler
    if any(isinstance(each, MetricsFeed) for each in handler.callbacks):
        return
    printing = [each for each in handler.callbacks if isinstance(each, (ProgressCallback, PrinterCallback))]
    others = [each for each in handler.callbacks if each not in printing]
    handler.callbacks = [*printing, MetricsFeed(handler), *others]


def is_training_log(logs: Mapping[str, Any]) -> bool:
    """Whether this is the log of training steps, not an evaluation's or the summary at the end."""
    return "loss" in logs


def add_metrics(state: Any, logs: dict[str, Any], metrics: Mapping[str, float]) -> None:
    """Add numbers to a log and to its entry in `state.log_history`, which the Trainer has written by then.

    What is there already stays: the Trainer's own names are not taken.
    """
    entries = [logs]
    if state.log_history and state.log_history[-1].get("step") == state.global_step:
        entries.append(state.log_history[-1])
    for entry in entries:
        for name, value in metrics.items():
            entry.setdefault(name, value)
