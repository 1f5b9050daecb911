"""A step through the pipeline: micro-batches by GPipe or 1F1B, as `torch.distributed.pipelining` runs them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from hf_recipes.pipeline.ranks import PipelineRanks
from hf_recipes.pipeline.stage import Stage

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class PipelineEngine:
    """Runs the schedule on this rank's stage. Its buffers are of one shape, so they are made anew for rows of another
    length.

    Args:
        stage: on its device.
        ranks: who is who.
        schedule: a key of `SCHEDULES`.
        micro_batches: of a step.
        rows: of a micro-batch.
        device: this rank's.
    """

    def __init__(
        self, stage: Stage, ranks: PipelineRanks, schedule: str, micro_batches: int, rows: int, device: torch.device
    ) -> None:
        self.stage, self.ranks, self.device = stage, ranks, device
        self._schedule, self._micro_batches, self._rows = schedule, micro_batches, rows
        self._length = -1
        self._tokens = 1
        self._running: PipelineScheduleSingle | None = None

    @property
    def step_rows(self) -> int:
        """Rows that one pipeline takes in a step."""
        return self._micro_batches * self._rows

    def train(self, batch: Mapping[str, Tensor], tokens: int) -> Tensor:
        """Forward and backward passes of a step; gradients are added to those that are there.

        Args:
            batch: ``input_ids`` and ``labels`` of `step_rows` rows.
            tokens: supervised ones of the whole global batch, which the loss is divided by.

        Returns:
            This pipeline's share of the loss on its last stage, zero on the others.
        """
        return self._run(batch, tokens, train=True)

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The summed loss of a batch of `step_rows` rows on the last stage, zero on the others; no gradients."""
        return self._run(batch, 1, train=False)

    def _run(self, batch: Mapping[str, Tensor], tokens: int, *, train: bool) -> Tensor:
        schedule, part = self._of_length(batch["input_ids"].shape[1]), self.stage.part
        self._tokens = tokens
        losses: list[Tensor] | None = [] if part.last else None
        target = batch["labels"].to(self.device) if part.last else None
        given = (batch["input_ids"].to(self.device),) if part.first else ()
        if train:
            schedule.step(*given, target=target, losses=losses, return_outputs=False)
        else:
            schedule.eval(*given, target=target, losses=losses, return_outputs=False)
        if not losses:
            return torch.zeros((), device=self.device)
        return torch.stack([loss.detach() for loss in losses]).sum()

    def _loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return self.stage.summed_loss(hidden, labels) / self._tokens

    def _of_length(self, length: int) -> PipelineScheduleSingle:
        if self._running is None or length != self._length:
            self._running, self._length = None, length  # the old buffers go first
            self._running = self._build(length)
        return self._running

    def _build(self, length: int) -> PipelineScheduleSingle:
        part = self.stage.part
        ids = torch.empty(self._rows, length, dtype=torch.long, device="meta")
        hidden = torch.empty(
            self._rows, length, self.stage.hidden_size, dtype=self.stage.dtype, device="meta", requires_grad=True
        )
        stage = PipelineStage(
            self.stage,
            part.index,
            part.stages,
            self.device,
            input_args=ids if part.first else hidden,
            output_args=hidden,
            group=self.ranks.group("pp"),
        )
        return SCHEDULES[self._schedule](stage, self._micro_batches, loss_fn=self._loss, scale_grads=False)
