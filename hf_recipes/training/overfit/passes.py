"""Many passes over a few rows: at the recipe's learning rate a couple of them, then at one that finds itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hf_recipes.training.overfit.floor import Row
from hf_recipes.training.overfit.gradients import GradientFacts, gradient_facts
from hf_recipes.training.overfit.losses import LossOfRows
from hf_recipes.training.overfit.samples import trained_tokens
from hf_recipes.training.overfit.snapshot import Snapshot

# Vogl et al. 1988 (Biological Cybernetics 59): a little faster after each fall of the loss, much slower after a rise.
_FASTER, _SLOWER = 1.3, 0.5
_RISE = 1.05  # a loss above so much of the last one is a rise
_ADDED_RATE = 3e-3  # parameters added to a model: LoRA, adapters, prefixes
_WIDTH_RATE = 0.05  # weights of the model itself: this, over their width
_MOST_FASTER = 30.0  # times the first rate
_RUIN_NATS = 2.0  # above the start: begin anew at a tenth
_PATIENCE, _PROGRESS = 20, 0.98  # steps without so much of the best loss before: nothing more will come
_CLIP = 1.0


@dataclass(frozen=True)
class Passes:
    """What passes over the same rows did.

    Attributes:
        losses: mean loss (nats a supervised token) before each step, and after the last.
        seconds: all of it.
        learning_rate: of the last step.
        stuck: it ended because the loss had stopped falling, not for want of time.
    """

    losses: tuple[float, ...]
    seconds: float
    learning_rate: float
    stuck: bool = False


@dataclass(frozen=True)
class FewRows:
    """The rows that are learned by heart, in micro-batches; a step takes them all, so that its loss has no noise."""

    losses: LossOfRows
    batches: Sequence[Sequence[Row]]

    @property
    def tokens(self) -> int:
        """Supervised tokens."""
        return max(1, sum(trained_tokens(row) for batch in self.batches for row in batch))

    def backward(self) -> float:
        """Put the gradient of the mean loss into the model's parameters; the loss."""
        self.losses.model.zero_grad(set_to_none=True)
        total = 0.0
        for batch in self.batches:
            loss = self.losses.total(batch) / self.tokens
            if loss.requires_grad:
                loss.backward()
            total += float(loss.detach())
        return total

    @torch.no_grad()
    def loss(self) -> float:
        """The mean loss now."""
        return sum(float(self.losses.total(batch)) for batch in self.batches) / self.tokens


def try_rate(rows: FewRows, rate: float, steps: int) -> tuple[Passes, GradientFacts]:
    """Take `steps` steps of Adam at `rate`; also the gradients before the first (0 steps: those alone)."""
    start, model = time.perf_counter(), rows.losses.model
    losses = [rows.backward()]
    facts = gradient_facts(model)
    optimizer = _adam(model, rate)
    if optimizer is None or not facts.norm or not math.isfinite(losses[0] + facts.norm):
        steps = 0
    for left in reversed(range(steps)):
        assert optimizer is not None
        _step(model, optimizer)
        losses.append(rows.backward() if left else rows.loss())
    model.zero_grad(set_to_none=True)
    return Passes(tuple(losses), time.perf_counter() - start, rate), facts


def learn_by_heart(
    rows: FewRows,
    bound: float,
    seconds: float,
    snapshot: Snapshot,
    *,
    rate: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Passes:
    """Train until the loss is below `bound`, has not fallen for 20 steps, or `seconds` are over.

    The learning rate begins at one usual for what is trained, rises by a third with each fall of the loss, and is
    halved by a rise. A loss 2 nats above the start puts the model back, to begin anew at a tenth.

    Args:
        rows: What is learned, with the model.
        bound: Nats a supervised token.
        seconds: From now.
        snapshot: The model as it was at the start.
        rate: The first learning rate.
        clock: Seconds, for tests.
    """
    start, model = clock(), rows.losses.model
    rate = own_rate(model) if rate is None else rate
    highest = rate * _MOST_FASTER
    optimizer = _adam(model, rate)
    losses: list[float] = []
    longest = 0.0
    while optimizer is not None:
        before = clock()
        loss = rows.backward()
        ruined = bool(losses) and not loss < losses[0] + _RUIN_NATS
        losses.append(loss)
        longest = max(longest, clock() - before)
        if loss <= bound or clock() - start + longest > seconds or _is_stuck(losses):
            break
        if ruined:
            rate /= 10
            snapshot.put_back()
            optimizer = _adam(model, rate)
            continue
        if len(losses) > 1:
            rate *= _SLOWER if loss > losses[-2] * _RISE else _FASTER if loss < losses[-2] else 1.0
            rate = min(rate, highest)
            for group in optimizer.param_groups if optimizer else ():
                group["lr"] = rate
        if optimizer is not None:
            _step(model, optimizer)
    stuck = bool(losses) and losses[-1] > bound and _is_stuck(losses)
    return Passes(tuple(losses), clock() - start, rate, stuck)


def _is_stuck(losses: Sequence[float]) -> bool:
    if not math.isfinite(losses[0]):
        return True
    before, lately = losses[:-_PATIENCE], losses[-_PATIENCE:]
    return bool(before) and min(lately) > _PROGRESS * min(before)


def own_rate(model: nn.Module) -> float:
    """A first learning rate: fixed for what a method adds; for weights of the model in inverse proportion to their
    width, as Adam's best one goes (Yang et al. 2022, Tensor Programs V, arXiv:2203.03466, table 3)."""
    if hasattr(model, "peft_config") or any("lora_" in name for name, _ in model.named_parameters()):
        return _ADDED_RATE
    matrices = [each for each in model.parameters() if each.requires_grad and each.dim() > 1]
    numbers = sum(each.numel() for each in matrices)
    width = sum(each.shape[-1] * each.numel() for each in matrices) / numbers if numbers else 0.0
    return _WIDTH_RATE / width if width else _ADDED_RATE


def _adam(model: nn.Module, rate: float) -> torch.optim.Optimizer | None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # foreach would hold another copy of everything
    return torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.99), weight_decay=0.0, foreach=False) if trained else None


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_([each for each in model.parameters() if each.requires_grad], _CLIP)
    optimizer.step()
