"""`PreemptionGuard`: a run that is asked to stop saves once, on all ranks at the same step, and ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hf_recipes.checkpoints.preemption.deadline import DeadlineWatch
from hf_recipes.checkpoints.preemption.grace import GraceWatch
from hf_recipes.checkpoints.preemption.notice import NoticePoll
from hf_recipes.checkpoints.preemption.stopped import unsaved_end
from hf_recipes.core.errors import UserError
from hf_recipes.core.events import event_log
from hf_recipes.core.log import logger
from hf_recipes.core.random_state import random_state_kept
from hf_recipes.core.step_vote import StepVote
from hf_recipes.core.stop_signals import StopListener

_FLAG = "preemption"


class EvaluationCut(Exception):
    """Raised on all ranks alike out of an evaluation that `cut_evaluations` breaks off."""


class PreemptionGuard(TrainerCallback):
    """Stops a run that SIGTERM, SIGUSR1, Ctrl-C, a deadline or the notice of its machine's end asks to stop: all ranks
    at the same step, which is saved once. Works alone in any Trainer: ``Trainer(…, callbacks=[PreemptionGuard()])``.

    It is heard at the end of an optimizer step, of an evaluation (with `cut_evaluations` at its next batch) and of a
    save, by any rank for all. A step is never cut short: its random numbers could not be taken back. A run that is at
    its last step just ends. Handlers are installed from `on_train_begin` to `on_train_end`, on the main thread.

    Events: "note" with `detector` "preemption" and `reason` when it is heard; "alarm" when the time after SIGTERM runs
    out.

    Args:
        deadline: Unix seconds at which everything has to be over.
        deadline_reason: what to call the deadline.
        notice: asks whether this machine goes; give it to the first rank of each machine.
        grace_seconds: a process that is not through so long after SIGTERM ends with what is there; schedulers kill
            after 30.
        at_expiry: is then given the exit code and the sentence, before the process ends.
        until_closed: the time after SIGTERM runs until `close`, not only to the end of the training.

    Attributes:
        preempted: why the run was stopped, None while it was not; the same on all ranks.
    """

    def __init__(
        self,
        deadline: float | None = None,
        deadline_reason: str = "the deadline",
        notice: NoticePoll | None = None,
        grace_seconds: float = 25.0,
        at_expiry: Callable[[int, str], None] | None = None,
        until_closed: bool = False,
    ) -> None:
        if not grace_seconds > 0:
            raise UserError(f"grace_seconds: {grace_seconds} is no length of time: give seconds above 0.")
        self.preempted: str | None = None
        self.cuts_evaluations = False
        self._training = False
        self._deadline = DeadlineWatch(deadline) if deadline is not None else None
        self._deadline_reason, self._notice = deadline_reason, notice
        self._grace_seconds, self._at_expiry, self._until_closed = grace_seconds, at_expiry, until_closed
        self._grace: GraceWatch | None = None
        self._listener = StopListener()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()
        self.preempted, self._training = None, True
        self._asked: str | None = None
        self._heard: str | None = None
        self._ends_anyway = self._saved_last = self._saves_late = False
        self._saved_step = -1
        self._batches = 0
        self._vote = StepVote.open()
        self._listener = StopListener(worker_seconds=self._grace_seconds + 5)
        if not self._listener.listen():
            _note(args, state, "Signals are not seen: the training does not run on Python's main thread.")
        elif args.enable_jit_checkpoint:
            _note(args, state, "enable_jit_checkpoint has no effect here: PreemptionGuard saves at SIGTERM.")
        if self._deadline:
            self._deadline.mark(time.time())
        if self._notice:
            self._notice.start()
        self._grace = GraceWatch(
            self._grace_seconds, lambda: self._listener.terminated, lambda: self._expire(args, state)
        )
        self._grace.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._deadline and self._saved_last:
            self._deadline.ended("save", time.time())
        self._saved_last = False

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look_at_the_clock()
        self._raise_flag()  # before anybody counts

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._deadline:
            self._deadline.step_ended(time.time())
            self._look_at_the_clock(control.should_evaluate)
        if self._is_asked(state):
            self._stop(args, state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.cuts_evaluations or not self._training:
            return
        self._look_at_the_clock()
        self._batches += 1
        if self.preempted or self._ends_anyway or self._is_asked(state, -self._batches):
            self._stop(args, state, control, after_evaluation=True)
            raise EvaluationCut

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._training:
            return
        if self._deadline:
            self._deadline.ended("evaluation", time.time())
            self._look_at_the_clock()
        if self._is_asked(state, again=True):
            self._stop(args, state, control, after_evaluation=True)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved_step, self._saved_last = state.global_step, True
        self._look_at_the_clock()
        if self._is_asked(state, again=True):
            self._stop(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.preempted or self._ends_anyway:
            control.should_evaluate = False
        if self.preempted:
            control.should_save = self._saved_step != state.global_step and (control.should_save or self._saves_late)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_training()
        if not self._until_closed:
            self.close()

    def close(self) -> None:
        """What had to be done after the training is done: signals do again what they did before, and the time after
        SIGTERM counts no more."""
        self._end_training()
        self._listener.close()
        if self._grace:
            self._grace.stop()
        self._grace = None

    def _end_training(self) -> None:
        self._training = False
        if self._notice:
            self._notice.stop()

    def _look_at_the_clock(self, evaluates: bool = False) -> None:
        if self._deadline and not self._asked and self._deadline.must_stop(time.time(), evaluates):
            self._asked = self._deadline_reason

    def _is_asked(self, state: Any, place: int | None = None, again: bool = False) -> bool:
        """Ask all ranks; the same answer on each."""
        self._raise_flag()
        count = self._vote.count_again if again else self._vote.count
        self._heard = count(state.global_step if place is None else place).get(_FLAG)
        return self._heard is not None

    def _raise_flag(self) -> None:
        """The signal handler leaves a word only: it may come in the middle of a count."""
        noticed = "the notice that its machine goes" if self._notice and self._notice.noticed else None
        if asked := self._listener.reason or self._asked or noticed:
            self._vote.raise_flag(_FLAG, asked)

    def _stop(self, args: Any, state: Any, control: Any, after_evaluation: bool = False) -> None:
        if self.preempted or self._ends_anyway or self._heard is None:
            return
        control.should_evaluate = False
        if state.global_step >= state.max_steps:
            self._ends_anyway = True
            told = f"Asked to stop by {self._heard} at the last step: the run ends as planned, without an evaluation."
            _note(args, state, told, reason=self._heard)
            return
        self.preempted = self._heard
        control.should_training_stop = True
        saved = self._saved_step == state.global_step
        # Else whoever prepares a save at the end of a step (a `CheckpointKeeper`) would not hear of it.
        self._saves_late = after_evaluation and not saved
        if not after_evaluation:
            control.should_save = not saved
        how = "and was just saved" if saved else "and is saved now"
        told = f"Asked to stop by {self._heard}: step {state.global_step} is the last, {how}."
        _note(args, state, told, reason=self._heard)

    def _expire(self, args: Any, state: Any) -> int:
        output = Path(args.output_dir)
        what = f"stopped by SIGTERM, but step and save were not done within {self._grace_seconds:g} s"
        code, sentence = unsaved_end(output, what)
        logger.error("%s", sentence)
        if self._at_expiry:
            self._at_expiry(code, sentence)
        with contextlib.suppress(OSError):  # a full disk: the status is what counts
            event_log(output).write("alarm", state.global_step, detector="preemption", message=sentence)
        return code


def cut_evaluations(trainer: Any) -> None:
    """Let the trainer's `PreemptionGuard` break off an evaluation, so that a stop has not to wait for its end.

    The metrics of an evaluation that is broken off are NaN and are neither logged nor seen by callbacks. Evaluations
    leave random numbers as they were (a data loader draws a seed): steps after one that was left out are the same. Does
    nothing without a guard, nor with a scheduler that steps on metrics.
    """
    guard = next((each for each in trainer.callback_handler.callbacks if isinstance(each, PreemptionGuard)), None)
    if guard is None or trainer.args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
        return
    whole = trainer.evaluate
    depth = 0

    def evaluate(*args: Any, **kwargs: Any) -> dict[str, float]:
        nonlocal depth
        depth += 1  # an evaluation in parts calls itself
        try:
            with random_state_kept():
                return whole(*args, **kwargs)
        except EvaluationCut:
            if depth > 1:
                raise
            name = (trainer.args.metric_for_best_model or "loss").removeprefix("eval_")
            return {f"eval_{name}": float("nan")}
        finally:
            depth -= 1

    guard.cuts_evaluations = True
    trainer.evaluate = evaluate


def _note(args: Any, state: Any, sentence: str, **values: Any) -> None:
    if state.is_world_process_zero:
        logger.warning("%s", sentence)
        with contextlib.suppress(OSError):  # a full disk must not keep this rank from the save that all others make
            event_log(args.output_dir).write(
                "note", state.global_step, detector="preemption", message=sentence, **values
            )
