"""The optimizer steps of a pipeline: what the Trainer's loop does, where each rank has one stage only.

Callbacks that need no whole model (the event log, the guard against preemption, the checkpoint keeper, the live page)
are called as the Trainer calls them.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import TrainerControl, TrainerState, get_scheduler
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback
from transformers.trainer_utils import speed_metrics

from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.events import event_log
from hf_recipes.core.ranks import is_main
from hf_recipes.pipeline.batches import Collate, StepBatch, make_batch, step_rows_of
from hf_recipes.pipeline.engine import PipelineEngine
from hf_recipes.pipeline.gradients import clip_gradients, loss_and_norm, reduce_gradients
from hf_recipes.training.arguments import global_batch_size, total_steps
from hf_recipes.training.pipelined_stage import BuiltStage

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback


@dataclass(frozen=True)
class LoopData:
    """Prepared rows: of the training, those of the evaluation by part (one part is named ""), the order of an epoch,
    and how rows become a batch."""

    train: Dataset
    parts: Mapping[str, Dataset]
    order: Callable[[int], np.ndarray]
    collate: Collate


@dataclass(frozen=True)
class MicroBatches:
    """What callbacks ask a data loader for: its rows, and how many batches they make."""

    dataset: Dataset
    count: int

    def __len__(self) -> int:
        return self.count


@dataclass
class PipelineLoop:
    """Trains a stage; every rank runs it alike.

    Args:
        args: the Trainer's arguments, whose world size is the number of pipelines.
        built: this rank's stage.
        engine: runs it.
        data: rows.
        callbacks: see above; that which saves comes after this loop has written.
        write: writes a checkpoint of the step that `state` is at.
    """

    args: Any
    built: BuiltStage
    engine: PipelineEngine
    data: LoopData
    optimizer: torch.optim.Optimizer
    callbacks: list[TrainerCallback]
    write: Callable[[PipelineLoop], None]
    state: TrainerState = field(default_factory=TrainerState)

    def __post_init__(self) -> None:
        args = self.args
        self.max_steps = total_steps(len(self.data.train), args)
        self.scheduler = get_scheduler(
            args.lr_scheduler_type,
            optimizer=self.optimizer,
            num_warmup_steps=args.get_warmup_steps(self.max_steps),
            num_training_steps=self.max_steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
        self.control = TrainerControl()
        self.callback_handler = CallbackHandler(
            [DefaultFlowCallback(), *self.callbacks], self.built.stage, None, self.optimizer, self.scheduler
        )
        self.callback_handler.train_dataloader = MicroBatches(self.data.train, self.batches_an_epoch)
        self._order = functools.lru_cache(maxsize=1)(self.data.order)
        self._loss, self._logged_step = 0.0, 0
        self._total_loss = 0.0

    def train(self) -> None:
        """Run all steps from where `state` stands; stops where a callback asks for it.

        Raises:
            CheckFailed: loss or gradient norm are not finite; nothing of that step reaches the weights.
        """
        self._begin()
        started, first = time.time(), self.state.global_step
        handler, args = self.callback_handler, self.args
        while self.state.global_step < self.max_steps and not self.control.should_training_stop:
            self._epoch_border("begin")
            self.control = handler.on_step_begin(args, self.state, self.control)
            norm, rate = self._step()
            self.control = handler.on_step_end(args, self.state, self.control)
            self._after_step(norm, rate)
            self._epoch_border("end")
        steps = self.state.global_step - first
        rows = steps * global_batch_size(args)
        summary = speed_metrics("train", started, num_samples=rows, num_steps=steps)
        self._log({**summary, "train_loss": (self._total_loss + self._loss) / max(1, steps)})
        self.control = handler.on_train_end(args, self.state, self.control)

    @property
    def batches_an_epoch(self) -> int:
        """Micro-batches that a pipeline sees in one pass over the rows, as the Trainer counts them."""
        rows = math.ceil(len(self.data.train) / self.args.world_size)
        return math.ceil(rows / self.args.per_device_train_batch_size)

    @property
    def steps_an_epoch(self) -> int:
        """Optimizer steps of one pass over the rows."""
        return math.ceil(self.batches_an_epoch / self.args.gradient_accumulation_steps)

    def _epoch(self) -> float:
        """How far the run is, in passes over the rows; the last step of an epoch may be short."""
        epoch, steps = divmod(self.state.global_step, self.steps_an_epoch)
        return epoch + steps * self.args.gradient_accumulation_steps / self.batches_an_epoch

    def _begin(self) -> None:
        state, args = self.state, self.args
        state.max_steps = self.max_steps
        state.num_train_epochs = math.ceil(self.max_steps / self.steps_an_epoch)
        state.is_world_process_zero = state.is_local_process_zero = is_main()
        state.compute_steps(args, self.max_steps)
        state.epoch = self._epoch()
        self._logged_step = state.global_step
        self.control = self.callback_handler.on_train_begin(args, state, self.control)

    def _epoch_border(self, side: str) -> None:
        if self.state.global_step % self.steps_an_epoch:
            return
        event = self.callback_handler.on_epoch_begin if side == "begin" else self.callback_handler.on_epoch_end
        self.control = event(self.args, self.state, self.control)
        if side == "end" and self.control.should_save:
            self._save()

    def _step(self) -> tuple[float, float]:
        """Forward, backward, update; the norm before clipping, and the rate that was used."""
        engine, built, args = self.engine, self.built, self.args
        numbers = step_rows_of(self._order, len(self.data.train), global_batch_size(args), self.state.global_step)
        batch = self._batch(self.data.train, numbers)
        mine = engine.train(batch.tensors, batch.tokens)
        trained = list(built.trained().values())
        reduce_gradients(trained, engine.ranks, tied=built.tied, summed_over_shards=built.summed)
        loss, norm = loss_and_norm(mine, trained, engine.ranks, copy=built.copy)
        self._stop_if_not_finite(loss, norm)
        if args.max_grad_norm:
            clip_gradients(trained, norm, args.max_grad_norm)
        self.control = self.callback_handler.on_pre_optimizer_step(args, self.state, self.control)
        self.optimizer.step()
        self.control = self.callback_handler.on_optimizer_step(args, self.state, self.control)
        rate = float(self.scheduler.get_last_lr()[0])
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state.global_step += 1
        self.state.epoch = self._epoch()
        self._loss += loss
        return norm, rate

    def _batch(self, rows: Dataset, numbers: np.ndarray) -> StepBatch:
        ranks = self.engine.ranks
        chosen = [rows[int(number)] for number in numbers]
        return make_batch(chosen, ranks.replica, ranks.replicas, self.engine.step_rows, self.data.collate)

    def _stop_if_not_finite(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        step = self.state.global_step + 1
        what = f"step {step} has loss {loss:g} and gradient norm {norm:g}"
        if is_main():
            event_log(self.args.output_dir).write(
                "alarm", step, detector="non_finite", verdict="not_finite", loss=loss, grad_norm=norm, message=what
            )
        raise CheckFailed(
            f"training was stopped: {what}, and nothing of it reached the weights: lower learning_rate, look at the "
            "rows of that step, then resume."
        )

    def _after_step(self, norm: float, rate: float) -> None:
        if self.control.should_log:
            steps = self.state.global_step - self._logged_step
            self._total_loss += self._loss
            self._log({"loss": self._loss / steps, "grad_norm": norm, "learning_rate": rate})
            self._loss, self._logged_step = 0.0, self.state.global_step
        if self.control.should_evaluate:
            self._evaluate()
        if self.control.should_save:
            self._save()

    def _log(self, logs: dict[str, float]) -> None:
        logs = {**logs, "epoch": self.state.epoch or 0.0}
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def _evaluate(self) -> None:
        """The mean loss per supervised token, over all eval rows of each part."""
        self.built.stage.eval()
        metrics = {f"eval_{part}_loss" if part else "eval_loss": self._loss_of(part) for part in self.data.parts}
        self.built.stage.train()
        if len(self.data.parts) > 1:
            rows = {f"eval_{part}_loss": len(dataset) for part, dataset in self.data.parts.items()}
            total = math.fsum(metrics[name] * count for name, count in rows.items())
            metrics["eval_loss"] = total / sum(rows.values())
        self._log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)

    def _loss_of(self, part: str) -> float:
        engine, rows = self.engine, self.data.parts[part]
        at_once = engine.step_rows * engine.ranks.replicas
        order = np.argsort(-np.asarray(rows["length"]), kind="stable")  # like lengths together
        total, tokens = torch.zeros((), device=engine.device), 0
        for start in range(0, len(rows), at_once):
            batch = self._batch(rows, order[start : start + at_once])
            total += engine.evaluate(batch.tensors)
            tokens += batch.tokens
        if engine.ranks.shard:
            total.zero_()
        dist.all_reduce(total)
        return float(total) / tokens

    def _save(self) -> None:
        self.write(self)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)
