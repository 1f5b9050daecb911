"""`CheckpointKeeper`: a manifest for every checkpoint, a verification beside the training, and a rotation that waits
for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from hf_recipes.checkpoints.background import BackgroundJob, finish_jobs
from hf_recipes.checkpoints.disk_space import empty_directory, estimate_checkpoint_bytes, why_not_enough
from hf_recipes.checkpoints.facts import training_facts
from hf_recipes.checkpoints.lock import release_lock, take_lock
from hf_recipes.checkpoints.manifest import DamagedManifest, read_manifest, read_verified
from hf_recipes.checkpoints.saved import Outcome, Rotation, Saved, settle, take_saved
from hf_recipes.checkpoints.tied import leave_tied_out_of_saves
from hf_recipes.checkpoints.verification.findings import LEVELS
from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.events import event_log
from hf_recipes.core.free_space import directory_bytes
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main, is_main
from hf_recipes.core.run_directory import list_checkpoints
from hf_recipes.core.step_vote import StepVote

_FLAG = "checkpoint"
_TRIAL_STEP = 1
_NOTABLE_SECONDS = 1.0


class CheckpointKeeper(TrainerCallback):
    """Marks each checkpoint as written (``manifest.json``) and as verified (``verified.json``); stops the run at the
    first that is not good. Works alone in any Trainer: ``Trainer(…, callbacks=[CheckpointKeeper()])``.

    Training goes on while rank 0 reads what was saved, in a thread. One checkpoint is verified at a time, before the
    next is written; the last one before the training ends. What is found is shared, so all ranks stop at the same step.

    Takes over `save_total_limit`, since the Trainer removes old checkpoints before the new one is verified, and by
    modification time. Empties what an earlier attempt left at a checkpoint's place. Passes a save over, and says so,
    where the disk has no room for it. Lets no second run write into the directory.

    Events: "verify" (`checkpoint`, `level`, `ok`, `bytes`, `seconds`, `held_seconds` and `waited_seconds` for which it
    held up the training, `problems`, `notes`, `removed`); "alarm" with `detector` "checkpoint" when one fails, or when
    there is no room; "note" for a trial save, for remains of an earlier attempt, for a save that had to wait.

    Args:
        level: "off" (manifest only), "structure", "content" (NaN, Inf, shapes, adapter pairs), "reload" (also compared
            bit for bit with the model in memory; where the model is sharded over ranks, content is what remains).
        save_total_limit: how many good checkpoints to keep; None: as the TrainingArguments say.
        extra: free values for the manifests (recipe hash, base model), besides those of `training_facts`.
        trial_save: save once after the first step of a fresh run, so that a save that cannot work is seen then. It is
            removed when a later checkpoint is verified. Not with `save_strategy` "no".

    Attributes:
        failed: why a checkpoint is not good, None while all are; the same on all ranks.

    Raises:
        UserError: there is no such level; or, when training begins, another run writes into the directory.
    """

    def __init__(
        self,
        level: str = "reload",
        save_total_limit: int | None = None,
        extra: Mapping[str, Any] | None = None,
        trial_save: bool = True,
    ) -> None:
        if level not in ("off", *LEVELS):
            known = ", ".join(("off", *LEVELS))
            raise UserError(f"verify_checkpoints: '{level}' is none of {known}{nearest(level, ('off', *LEVELS))}.")
        self.level = level
        self.save_total_limit = save_total_limit
        self.extra = dict(extra or {})
        self.trial_save = trial_save
        self.failed: str | None = None
        self._arguments_limit: int | None = None
        self._job: BackgroundJob[Outcome] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._vote = StepVote.open()
        if is_main():
            finish_jobs()  # of a training in this process that an exception ended
        self.failed, self._job = None, None
        self._fresh = state.global_step == 0
        self._held_seconds, self._told_waiting = 0.0, False
        leave_tied_out_of_saves(kwargs["model"])
        self._written_bytes, self._trial = from_main(lambda: _begin_on_disk(Path(args.output_dir), self._fresh))
        if args.save_total_limit is not None:
            self._arguments_limit, args.save_total_limit = args.save_total_limit, None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._want_trial(args, state, control)
        if control.should_save:
            self._before_save(args, state, control, kwargs)
        else:
            self._collect(args, state, wait=False)
            self._hear(control, self._vote.count(state.global_step))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_save:
            if self._trial == state.global_step:  # the trial's place is a regular one
                self._trial = None
            self._before_save(args, state, control, kwargs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # This strategy decides after the evaluation, and asks nobody.
        if args.save_strategy == SaveStrategy.BEST and _will_be_best(args, state, kwargs["metrics"]):
            self._before_save(args, state, control, kwargs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_hyper_param_search:  # its checkpoints lie where only the search knows
            return
        self._collect(args, state, wait=True)  # nothing, unless a callback behind this one asked for the save
        # From here on the other ranks' random states and shards are in place.
        self._hear(control, self._vote.count_again(state.global_step))
        if is_main():
            begin = time.perf_counter()
            self._start(args, state, kwargs)
            self._held_seconds = time.perf_counter() - begin

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._collect(args, state, wait=True)
        self._hear(control, self._vote.count_again(state.global_step))
        args.save_total_limit, self._arguments_limit = self._arguments_limit, None
        if is_main():
            release_lock(args.output_dir)

    def _want_trial(self, args: Any, state: Any, control: Any) -> None:
        if not self.trial_save or not self._fresh or state.global_step != _TRIAL_STEP or state.is_hyper_param_search:
            return
        if args.save_strategy == SaveStrategy.NO or control.should_save or control.should_training_stop:
            return
        control.should_save = True
        self._trial = _TRIAL_STEP
        text = "Saving once after the first step, to see that saving works; removed when a later save is verified."
        self._note(args, state, text)

    def _collect(self, args: Any, state: Any, *, wait: bool) -> None:
        """Rank 0: take the result of the verification that runs, if there is one."""
        if self._job is None or not (wait or self._job.done):
            return
        begin = time.perf_counter()
        outcome = self._job.wait()
        waited = time.perf_counter() - begin
        name = outcome.saved.directory.name
        self._job = None
        if waited > _NOTABLE_SECONDS and not self._told_waiting:
            self._told_waiting = True
            text = f"Step {state.global_step}: training waited {waited:.1f} s for the verification of {name}."
            self._note(args, state, text, waited_seconds=waited)
        self._tell(outcome, waited)

    def _tell(self, outcome: Outcome, waited_seconds: float = 0.0) -> None:
        """Write down what became of a checkpoint; a bad one is for all ranks to hear."""
        saved = outcome.saved
        output_dir, step = saved.directory.parent, saved.step
        self._written_bytes = sum(saved.sizes.values())
        for note in [*(outcome.report.notes if outcome.report else []), *outcome.notes]:
            logger.info("%s: %s", saved.directory.name, note)
        if outcome.report:
            with contextlib.suppress(OSError):  # a full disk has no room for the event either
                self._verify_event(outcome, waited_seconds)
        if outcome.failed:
            self._fail(output_dir, step, outcome.failed)
        elif short := why_not_enough(output_dir, self._written_bytes):
            text = f"After checkpoint-{step} there is no room for another one: {short}. {_MAKE_ROOM}"
            self._alarm(output_dir, step, text)

    def _verify_event(self, outcome: Outcome, waited_seconds: float) -> None:
        report = outcome.report
        assert report
        event_log(outcome.saved.directory.parent).write(
            "verify",
            outcome.saved.step,
            checkpoint=report.directory.name,
            level=report.level,
            ok=report.ok,
            bytes=report.checked_bytes,
            seconds=outcome.seconds,
            held_seconds=self._held_seconds,
            waited_seconds=waited_seconds,
            problems=[str(problem) for problem in report.problems],
            notes=[*report.notes, *outcome.notes],
            removed=[path.name for path in outcome.removed],
        )

    def _fail(self, output_dir: Path, step: int, reason: str) -> None:
        self._vote.raise_flag(_FLAG, reason)
        self._alarm(output_dir, step, f"{reason}. Training stops; resume from the newest good checkpoint.", reason)

    def _hear(self, control: Any, flags: Mapping[str, str]) -> None:
        """Stop where any rank raised the flag. Nothing is saved any more: it would be as bad, and take the room."""
        if reason := flags.get(_FLAG):
            self.failed = reason
            control.should_training_stop, control.should_save = True, False

    def _before_save(self, args: Any, state: Any, control: Any, kwargs: Mapping[str, Any]) -> None:
        """Wait for the verification that runs, then see that there is room and a clean place; else all ranks alike
        pass this save over."""
        if state.is_hyper_param_search:
            return
        self._collect(args, state, wait=True)
        # Where the others wait for rank 0, for hours if need be; a collective of the device's would give up.
        self._hear(control, self._vote.count_again(state.global_step))
        if not self.failed and from_main(lambda: self._why_no_room(args, state, kwargs)):
            control.should_save = False

    def _why_no_room(self, args: Any, state: Any, kwargs: Mapping[str, Any]) -> str | None:
        output_dir = Path(args.output_dir)
        target = output_dir / f"checkpoint-{state.global_step}"
        needed = self._written_bytes or estimate_checkpoint_bytes(
            kwargs["model"], kwargs["optimizer"], save_only_model=args.save_only_model
        )
        short = why_not_enough(output_dir, needed, directory_bytes(target))
        if short and args.save_strategy != SaveStrategy.BEST:
            last = list_checkpoints(output_dir)
            left = f"the last checkpoint stays {last[-1].name}" if last else "there is no checkpoint yet"
            text = f"Step {state.global_step}: not saved, {short}. Training goes on; {left}. {_MAKE_ROOM}"
            self._alarm(output_dir, state.global_step, text)
            return short
        if removed := empty_directory(target):
            text = f"{target.name} of an earlier attempt ({len(removed)} files) is removed before it is written anew."
            self._note(args, state, text)
        return None

    def _start(self, args: Any, state: Any, kwargs: Mapping[str, Any]) -> None:
        """Rank 0: take what cannot wait, and leave the rest to the thread. Whatever happens, it returns: the other
        ranks are already on their way to the next step."""
        output_dir, step = Path(args.output_dir), state.global_step
        directory = output_dir / f"checkpoint-{step}"
        try:
            saved = self._take(args, state, directory, kwargs)
        except Exception as error:
            logger.exception("Taking stock of %s crashed.", directory)
            self._fail(output_dir, step, f"taking stock of {directory.name} crashed ({type(error).__name__}: {error})")
            return
        self._job = BackgroundJob(f"verifying {directory.name}", partial(settle, saved), self._tell)

    def _take(self, args: Any, state: Any, directory: Path, kwargs: Mapping[str, Any]) -> Saved:
        limit = self.save_total_limit if self.save_total_limit is not None else self._arguments_limit
        rotation = Rotation(limit if limit and limit > 0 else None, state.best_model_checkpoint, self._trial)
        facts = {**training_facts(args, state, kwargs.get("train_dataloader")), **self.extra}
        if self._trial == state.global_step:
            facts["trial"] = True
        return take_saved(
            directory,
            state.global_step,
            self.level,
            kwargs.get("model"),
            facts,
            rotation,
            resumable=not args.save_only_model,
        )

    def _note(self, args: Any, state: Any, text: str, **values: Any) -> None:
        if is_main():
            logger.info(text)
            with contextlib.suppress(OSError):
                event_log(args.output_dir).write("note", state.global_step, detector=_FLAG, message=text, **values)

    def _alarm(self, output_dir: Path, step: int, text: str, message: str | None = None) -> None:
        logger.warning(text)
        with contextlib.suppress(OSError):
            event_log(output_dir).write("alarm", step, detector=_FLAG, message=message or text)


_MAKE_ROOM = "What to do: free space there, keep fewer checkpoints (save_total_limit), or save less often (save_steps)."


def _begin_on_disk(output_dir: Path, fresh: bool) -> tuple[int, int | None]:
    """Take the lock; the size of the newest checkpoint that a resumed run finds verified (0: none), and the step of
    the trial that its first attempt left."""
    take_lock(output_dir)
    found = [] if fresh else list_checkpoints(output_dir)
    verified = [checkpoint for checkpoint in found if (read_verified(checkpoint) or {}).get("ok")]
    size = directory_bytes(verified[-1]) if verified else 0
    with contextlib.suppress(DamagedManifest, OSError):
        manifest = read_manifest(output_dir / f"checkpoint-{_TRIAL_STEP}")
        if not fresh and manifest and manifest.extra.get("trial") is True:
            return size, _TRIAL_STEP
    return size, None


def _will_be_best(args: Any, state: Any, metrics: Mapping[str, Any]) -> bool:
    """Whether the Trainer will find this evaluation better than those before, as it compares them."""
    name = args.metric_for_best_model or ""
    value = metrics.get(name if name.startswith("eval_") else f"eval_{name}")
    if value is None:
        return False
    best = state.best_metric
    return best is None or bool(value > best if args.greater_is_better else value < best)
