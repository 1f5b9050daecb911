"""`NonFiniteGuard`: no NaN and no infinity reaches the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import TrainerCallback

from hf_recipes.callbacks.advice import for_bad_weights, for_non_finite
from hf_recipes.callbacks.bad_batches import save_bad_batch
from hf_recipes.callbacks.bad_step_sentences import (
    lost_steps,
    name_some,
    what_happened,
    what_is_done,
    where_it_is,
    which_weights,
)
from hf_recipes.callbacks.bad_steps import BadSteps, Decision
from hf_recipes.callbacks.finite_weights import weights_not_finite
from hf_recipes.callbacks.gradients import GradientGate
from hf_recipes.callbacks.reading import BadMicroBatch, Reading
from hf_recipes.callbacks.restore import lower_learning_rate, restore_training_state, why_not_restorable
from hf_recipes.callbacks.watching import Resumable, alarm, note, run_facts
from hf_recipes.core import ranks
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger

MAX_FILES = 20
"""Bad micro-batches that a run writes at most, over all ranks."""

LastGood = Callable[[Path], Path | None]

# A callable cannot go into a checkpoint's JSON; a copy that the Trainer builds at a resume finds it by its model.
_LAST_GOOD: WeakKeyDictionary[torch.nn.Module, LastGood] = WeakKeyDictionary()


@dataclass
class _Outcome:
    """What was done about a bad step: the decision as it stands, what is told of it, what goes into the event."""

    decision: Decision
    sentence: str
    values: dict[str, Any] = field(default_factory=dict)


class NonFiniteGuard(Resumable, TrainerCallback):
    """Catches a non-finite loss or gradient before the optimizer step, on all ranks alike, at every step.

    The Trainer by itself logs such a loss as the running mean and takes the step. Here the update is dropped (weights
    and optimizer state stay as they were; the learning-rate schedule still moves on by one step) and the alarm names
    step, micro-batch and rank; the micro-batch is written to ``bad_batches/`` (see `load_bad_batch`). Where the weights
    are not finite themselves, skipping cannot help: then "skip" stops too. Under DeepSpeed the update is already made:
    the guard can only stop.

    Overflowing fp16 gradients under a loss scaler with a finite loss are the scaler's business: it skips the update and
    lowers its scale. They are counted, and stop the run only after `max_consecutive_skips` in a row.

    Args:
        policy: "stop" ends the run at the first bad step, "skip" goes on; "restore" puts weights and optimizer state
            back to the last good checkpoint, lowers the learning rate and goes on with the data after the bad batch
            (before the first checkpoint it skips and lowers the rate). Step numbers and schedule go on.
        max_consecutive_skips: bad steps in a row after which "skip" stops too.
        save_batches: write bad micro-batches, 20 a run at most.
        last_good: for "restore": output directory → newest checkpoint known to be good, or None. Asked on rank 0.
        lr_factor: for "restore": what the learning rate is multiplied by, each time.
        max_restores: for "restore": the bad step after so many stops the run.

    Attributes:
        tripped: the sentence that says why this guard stopped the run, or None.

    Events: "alarm" with `detector` "non_finite", `what` (loss or gradient), `micro_batch` (from 1), `micro_batches`,
    `bad_rank`, `grad_norm`, `decision`, `update_dropped`, `files`, `weights_not_finite` (names), and with "restore"
    `restored_from`, `lost_steps`, `learning_rate_now`; "note" with `skipped` and `restores` at the end.

    Raises:
        UserError: at the start, on all ranks alike: a trainable weight is not finite, or "restore" cannot be had.
    """

    detector: BadSteps

    def __init__(
        self,
        policy: str = "stop",
        max_consecutive_skips: int = 10,
        *,
        save_batches: bool = True,
        last_good: LastGood | None = None,
        lr_factor: float = 0.5,
        max_restores: int = 3,
    ) -> None:
        if policy not in ("stop", "skip", "restore"):
            raise UserError(f"NonFiniteGuard(policy={policy!r}): policy must be 'stop', 'skip' or 'restore'.")
        if not 0 < lr_factor <= 1:
            raise UserError(f"NonFiniteGuard(lr_factor={lr_factor!r}): lr_factor must be above 0 and at most 1.")
        self.policy = policy
        self.max_consecutive_skips = max_consecutive_skips
        self.save_batches = save_batches
        self.last_good = last_good
        self.lr_factor = lr_factor
        self.max_restores = max_restores
        self.tripped: str | None = None
        self.detector = self.new_detector()

    def settings(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "max_consecutive_skips": self.max_consecutive_skips,
            "save_batches": self.save_batches,
            "lr_factor": self.lr_factor,
            "max_restores": self.max_restores,
        }

    def new_detector(self) -> BadSteps:
        if self.policy == "restore":
            return BadSteps(self.max_consecutive_skips, self.max_restores)
        return BadSteps(1 if self.policy == "stop" else self.max_consecutive_skips)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.last_good is not None and kwargs.get("model") is not None:
            _LAST_GOOD[kwargs["model"]] = self.last_good

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(state)
        self.tripped = None
        self._micro_batch = 1
        self.last_good = self.last_good or _LAST_GOOD.get(kwargs["model"])
        if self.policy == "restore":
            self._check_restorable(kwargs["model"], kwargs["optimizer"])
            if args.save_strategy == "no" and state.is_world_process_zero:
                logger.warning("save_strategy: no writes no checkpoint to go back to: bad steps will only be skipped.")
        if names := weights_not_finite(kwargs["model"], trainable_only=True):
            raise UserError(
                f"Before step {state.global_step + 1}, trainable weights are not finite already ({name_some(names)}): "
                "start from other weights, or from a checkpoint that verifies (hf-recipes verify)."
            )
        self._gate = GradientGate.open(args, kwargs["model"], kwargs["optimizer"])
        self._gate.guarded = True
        if self.save_batches:
            self._gate.keep_micro_batches = True

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._micro_batch += 1
        self._gate.end_micro_batch(kwargs["model"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        micro_batches, self._micro_batch = self._micro_batch, 1
        reading = self._gate.measure(state.global_step, kwargs["model"])
        bad = reading.bad
        overflow = bad is not None and bad.what == "gradient" and self._gate.loss_scaled
        limit = self.max_consecutive_skips if overflow else 1 if self._gate.updates_in_backward else None
        names = weights_not_finite(kwargs["model"]) if bad is not None and not overflow else []
        decision = self.detector.judge(bad is not None, limit, weights_bad=bool(names))
        if bad is None or (overflow and decision == "skip"):
            return
        files, where = self._save(args, reading, bad, micro_batches, kwargs)
        update_dropped = self._gate.skip_update()
        if decision == "restore":
            outcome = self._restore(args, state, bool(names), kwargs)
        else:
            done = what_is_done(
                decision, reading.step, self.detector, self.max_consecutive_skips, update_dropped, names
            )
            outcome = _Outcome(decision, done)
        facts = run_facts(args, kwargs["model"], self._gate.max_grad_norm)
        parts = [what_happened(reading, bad, args.gradient_accumulation_steps), which_weights(names), outcome.sentence]
        advice = for_non_finite(
            facts,
            loss=bad.what == "loss",
            rate_lowered=outcome.decision == "restore",
            first_step=reading.step == 1,
        )
        if names:
            trained = {name for name, each in kwargs["model"].named_parameters() if each.requires_grad}
            advice = for_bad_weights(trained=bool(trained & set(names)))
        sentence = " ".join(part for part in (*parts, where, advice) if part)
        if outcome.decision == "stop":
            self.tripped = sentence
            control.should_training_stop = True
        alarm(
            args,
            state,
            reading.step,
            "non_finite",
            sentence,
            what=bad.what,
            micro_batch=bad.micro_batch,
            micro_batches=args.gradient_accumulation_steps,
            bad_rank=bad.rank,
            grad_norm=reading.norm,
            learning_rate=args.learning_rate,
            decision=outcome.decision,
            update_dropped=update_dropped,
            files=files,
            weights_not_finite=names,
            **outcome.values,
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate.close(kwargs["model"])
        if total := self.detector.total:
            sentence = f"{total} of {state.global_step} updates were skipped because a loss or gradient was not finite."
            note(args, state, "non_finite", sentence, skipped=total, restores=self.detector.restores)

    def _check_restorable(self, model: torch.nn.Module, optimizer: Any) -> None:
        otherwise = "use the policy 'stop' (watch.non_finite: stop), then --resume_from_checkpoint last"
        if reason := why_not_restorable(model, optimizer):
            raise UserError(f"NonFiniteGuard('restore') cannot put this run back, for {reason}: {otherwise}.")
        if self.last_good is None:
            raise UserError(
                "NonFiniteGuard('restore') does not know which checkpoints are good: give it last_good=lambda "
                f"directory: last_good_checkpoint(directory).path, before the Trainer is built; or {otherwise}."
            )

    def _save(
        self, args: Any, reading: Reading, bad: BadMicroBatch, micro_batches: int, kwargs: dict[str, Any]
    ) -> tuple[list[str], str]:
        """Write the bad micro-batch where it is; the files of all ranks, and what is told of them."""
        if not self.save_batches:
            return [], ""
        left = max(0, MAX_FILES - self.detector.files)
        wanted = _suspects(bad, self._gate.micro_batches, micro_batches)
        share = left if bad.rank is not None else _share(left, ranks.rank(), ranks.world_size())
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        files, problem = [], None
        try:
            for number in wanted[:share]:
                facts = {"step": reading.step, "rank": ranks.rank(), "micro_batch": number, "what": bad.what}
                inputs = self._gate.micro_batches[number - 1]
                tokenizer = kwargs.get("processing_class")
                files.append(save_bad_batch(Path(args.output_dir), facts, inputs, dataset, tokenizer))
        except Exception as error:  # a full disk, a dead device: whatever it is must not hide the alarm
            problem = " ".join(f"{type(error).__name__}: {error}".split())
        of_all = ranks.gather((files, problem, max(0, len(wanted) - share)))
        written = [file for each, _, _ in of_all for file in each]
        self.detector.files += len(written)
        problems = [f"rank {rank}: {each}" for rank, (_, each, _) in enumerate(of_all) if each]
        return written, where_it_is(written, problems, sum(left_out for *_, left_out in of_all), MAX_FILES)

    def _restore(self, args: Any, state: Any, weights_bad: bool, kwargs: dict[str, Any]) -> _Outcome:
        """Go back to the last good checkpoint and lower the learning rate."""
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        try:
            found = ranks.from_main(lambda: self._newest(args, state))
            if found is not None:
                _on_all_ranks(lambda: restore_training_state(model, optimizer, found[0]))
        except (UserError, CheckFailed) as error:
            return _Outcome("stop", f"Training stops, for it could not be put back: {str(error).rstrip('.')}.")
        rate = lower_learning_rate(optimizer, kwargs["lr_scheduler"], self.lr_factor)
        lower = f"all learning rates are multiplied by {self.lr_factor:g} from here on (now {rate:.3g})"
        times = f"{self.detector.restores} of {self.max_restores} times"
        values: dict[str, Any] = {"learning_rate_now": rate, "restored_from": None, "lost_steps": 0}
        if found is None:
            if weights_bad:
                return _Outcome("stop", "Training stops, for there is no good checkpoint to go back to.", values)
            return _Outcome(
                "skip", f"There is no good checkpoint yet: the update is skipped, and {lower}, {times}.", values
            )
        checkpoint, step = found
        lost = state.global_step - step
        values |= {"restored_from": checkpoint.name, "lost_steps": lost}
        if weights_bad and (names := weights_not_finite(model)):
            return _Outcome(
                "stop",
                f"Training stops: after going back to {checkpoint.name}, {name_some(names)} are not finite.",
                values,
            )
        return _Outcome(
            "restore",
            f"Weights and optimizer state are put back to {checkpoint.name} ({lost_steps(lost)}), the data go on after "
            f"this batch, and {lower}, {times}.",
            values,
        )

    def _newest(self, args: Any, state: Any) -> tuple[Path, int] | None:
        """The last good checkpoint of this run and its step; one of a later step is another run's."""
        assert self.last_good is not None, "checked at the start"
        try:
            checkpoint = self.last_good(Path(args.output_dir))
            if checkpoint is None:
                return None
            step = int(read_json(Path(checkpoint) / "trainer_state.json")["global_step"])
        except Exception as error:  # the callable is the user's; only what `from_main` passes on reaches all ranks
            raise UserError(f"the last good checkpoint could not be found ({type(error).__name__}: {error})") from error
        return (Path(checkpoint), step) if step <= state.global_step else None


def _on_all_ranks(function: Callable[[], None]) -> None:
    """Run `function` on every rank; what it raises as `UserError` on one is raised on all."""
    failure: UserError | None = None
    try:
        function()
    except UserError as error:
        failure = error
    if met := next((each for each in ranks.gather(failure) if each), None):
        raise met


def _suspects(bad: BadMicroBatch, kept: list[dict[str, Any]], micro_batches: int) -> list[int]:
    """Numbers, from 1, of this rank's kept micro-batches that may be the bad one."""
    if bad.rank not in (None, ranks.rank()):
        return []
    # With several forward passes a micro-batch (a reference model's, say) it is not known whose inputs are whose.
    if bad.micro_batch is None or len(kept) != micro_batches:
        return list(range(1, len(kept) + 1))
    return [bad.micro_batch]


def _share(files: int, rank: int, world_size: int) -> int:
    """How many of `files` a rank may write, so that all together write no more."""
    each, rest = divmod(files, world_size)
    return each + (rank < rest)
