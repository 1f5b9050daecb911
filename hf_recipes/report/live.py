"""`ReportCallback`: the page of a run, written anew while it trains."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hf_recipes.core.events import event_log
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.history import Event
from hf_recipes.report.page import write_page
from hf_recipes.report.read_run import RunReader


class ReportCallback(TrainerCallback):
    """Keeps ``report.html`` in the output directory up to date: at the begin, after logs, evaluations and saves, and at
    the end. Rank 0 alone writes, and spends no more than `share` of the time since the last writing on it, but for the
    first page and the last. A page that cannot be written is told once and never stops the run.

    Curves come from ``events.jsonl``; in a Trainer without `EventLogCallback`, from the Trainer's own log. Put it last
    among the callbacks, so that the others have written what it reads.

    Args:
        share: the part of the run's time that writing may take.
    """

    def __init__(self, share: float = 0.01) -> None:
        self.share = share
        self._training = False  # evaluating alone leaves no page

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training = True
        self._reader = RunReader(RunDirectory(Path(args.output_dir)))
        self._began = {"kind": "begin", "time": time.time(), "step": state.global_step, "max_steps": state.max_steps}
        self._own: Event | None = None  # what our own events share, where nobody else writes any
        self._decided = False  # not before all callbacks have begun
        self._taken = 0  # entries of the Trainer's own log
        self._told = False
        self._written: float | None = None  # when, by the monotonic clock
        self._seconds = 0.0  # how long it took
        self._see(args, state)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._see(args, state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._see(args, state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._see(args, state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._decided:
            self._see(args, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._see(args, state, ended=True)

    def _see(self, args: Any, state: Any, ended: bool = False) -> None:
        """Take in what is new, and write the page at the begin, at the end, and when it is due."""
        if not state.is_world_process_zero or not self._training:
            return
        started = time.monotonic()
        begins = self._written is None
        due = self._written is None or (started - self._written) * self.share >= self._seconds
        try:
            if not begins and not self._decided:
                self._decide(args)
            if self._own is not None:
                self._take_trainers_log(self._own, state, ended)
            if due or ended:
                write_page(self._reader.read())
        except Exception as error:  # whatever it is: a page is not worth a run
            if not self._told:
                logger.warning("report.html could not be written (%s); the run goes on without it.", error)
            self._told = True
        if due or ended:
            self._written = time.monotonic()
            self._seconds = self._written - started

    def _decide(self, args: Any) -> None:
        """Whether another callback writes events; all have begun when the first step does."""
        self._decided = True
        attempt = event_log(args.output_dir).attempt
        begins = [event for event in self._reader.read().history.events if event.get("kind") == "begin"]
        if not any(event.get("attempt") == attempt for event in begins):
            self._own = {"attempt": attempt}
            self._reader.history.add({**self._own, **self._began})

    def _take_trainers_log(self, own: Event, state: Any, ended: bool) -> None:
        """Its entries as events; a resumed run's log holds what came before too."""
        for entry in state.log_history[self._taken :]:
            kind = "eval" if any(name.startswith("eval_") for name in entry) else "log"
            if "train_runtime" not in entry:
                self._reader.history.add({**entry, **own, "kind": kind, "time": time.time()})
        self._taken = len(state.log_history)
        if ended:
            end = {"kind": "end", "step": state.global_step, "stopped_early": state.global_step < state.max_steps}
            self._reader.history.add({**own, **end, "time": time.time()})
