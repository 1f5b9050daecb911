"""A tiny model that can be poisoned by a token, and plain Trainers around it. Also run under torchrun by the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

VOCABULARY = 24
# Marker tokens: a row that holds one has that fault.
NAN_LOSS = 20  # loss and all gradients NaN
NAN_LOSS_ONLY = 21  # loss NaN, gradients healthy: the Trainer's filter hides it altogether
NAN_GRADIENT_ONLY = 22  # loss healthy, gradient NaN


class _NanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("nan")


class PoisonModel(nn.Module):
    """Predicts labels from tokens; healthy unless a marker token is in the batch."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embedding(input_ids)
        if (input_ids == NAN_GRADIENT_ONLY).any():
            hidden = _NanGradient.apply(hidden)
        logits = self.head(hidden)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if (input_ids == NAN_LOSS).any():
            loss = loss * float("nan")
        if (input_ids == NAN_LOSS_ONLY).any():
            loss = loss + float("nan")
        return {"loss": loss, "logits": logits}


def rows(count: int, poison: dict[int, int] | None = None, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """`count` seeded rows of 6 tokens; `poison` maps a row's number to the marker token put into it."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randint(0, 20, (6,), generator=generator) for _ in range(count)]
    data = [{"input_ids": ids.clone(), "labels": (ids * 7 + 3) % 20} for ids in made]
    for row, marker in (poison or {}).items():
        data[row]["input_ids"][2] = marker
    return data


class InOrderTrainer(Trainer):
    """Takes rows in the order given, so that a test knows which step a poisoned row falls into."""

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> torch.utils.data.SequentialSampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def make_trainer(
    output_dir: Path,
    callbacks: list[TrainerCallback],
    data: list[dict[str, torch.Tensor]] | None = None,
    model: nn.Module | None = None,
    **arguments: Any,
) -> Trainer:
    """A plain Trainer on the CPU: 1 row a micro-batch, 4 steps, AdamW at 1e-2, a log each step, no saves."""
    defaults = {
        "output_dir": str(output_dir),
        "max_steps": 4,
        "per_device_train_batch_size": 1,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
    }
    return InOrderTrainer(
        model=model or PoisonModel(),
        args=TrainingArguments(**{**defaults, **arguments}),
        train_dataset=data or rows(64),
        eval_dataset=rows(8, seed=1),
        callbacks=callbacks,
    )


def weights(model: nn.Module) -> torch.Tensor:
    """All parameters as one flat float tensor."""
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])


def logged(trainer: Trainer, key: str) -> list[float]:
    """One logged value, in order of steps."""
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def optimizer_steps(trainer: Trainer) -> list[float]:
    """AdamW's own step count of each parameter."""
    return [float(state["step"]) for state in trainer.optimizer.state.values()]


class Readings(TrainerCallback):
    """Keeps what the gate measured of each step, and the rows of its micro-batches."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.micro_batches: list[list[list[int]]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from hf_recipes.callbacks.gradients import GradientGate

        self._gate = GradientGate.open(args, kwargs["model"], kwargs["optimizer"])
        self._gate.keep_micro_batches = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(self._gate.measure(state.global_step, kwargs["model"]))
        self.micro_batches.append([batch["input_ids"][0].tolist() for batch in self._gate.micro_batches])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate.close(kwargs["model"])


class LossScaled(TrainerCallback):
    """Gives the accelerated optimizer a CPU scaler, as fp16 on a GPU would, and unscales, as the Trainer does there.

    To the accelerated optimizer every step counts as skipped, so the scheduler is not stepped.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer._optimizer_original_step_method = optimizer.optimizer.step
        optimizer._optimizer_patched_step_method = optimizer.optimizer.step
        optimizer._accelerate_step_called = False
        optimizer.scaler.scale(torch.ones(()))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        optimizer.scaler.unscale_(optimizer.optimizer)
