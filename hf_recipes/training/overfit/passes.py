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

# As Vogl et al. 1988 (Biological Cybernetics 59): faster while the loss falls slowly, much slower after a rise;
# slower, too, after a fall to less than half, which leaves less way than the last step made.
_FASTER, _SLOWER, _NEARER = 1.3, 0.5, 0.7
_RISE, _SLOW, _LARGE = 1.05, 0.8, 0.5  # the loss as a share of the last one
_ADDED_RATE, _HIGHEST_ADDED = 3e-3, 0.01  # parameters added to a model: LoRA, adapters, prefixes
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
        pass_seconds: the last forward and backward pass.
        stuck: it ended because the loss had stopped falling, not for want of time.
    """

    losses: tuple[float, ...]
    seconds: float
    learning_rate: float
    pass_seconds: float = 0.0
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

    def backward(self, enough: float = -math.inf) -> float:
        """Put the gradient of the mean loss into the model's parameters; the loss. Rows that are one batch get no
        gradient where the loss is `enough` already."""
        self.losses.model.zero_grad(set_to_none=True)
        total = 0.0
        for batch in self.batches:
            loss = self.losses.total(batch) / self.tokens
            total += float(loss.detach())
            if loss.requires_grad and not (len(self.batches) == 1 and total <= enough):
                loss.backward()
        return total

    @torch.no_grad()
    def loss(self) -> float:
        """The mean loss now."""
        return sum(float(self.losses.total(batch)) for batch in self.batches) / self.tokens


def try_rate(rows: FewRows, rate: float, steps: int, floor: float = -math.inf) -> tuple[Passes, GradientFacts]:
    """Take `steps` steps of Adam at `rate`; also the gradients before the first, which up to one step stay in
    place for `learn_by_heart` to begin with.

    Args:
        rows: What is learned, with the model.
        rate: 0: the gradients alone.
        steps: At most so many: at a rate below the test's own first one, whose step tells more, it is one, and what it
            did to the loss is not looked at.
        floor: Of the loss, nats.
    """
    start, model = time.perf_counter(), rows.losses.model
    losses = [rows.backward()]
    pass_seconds = time.perf_counter() - start
    facts = gradient_facts(model)
    optimizer = _adam(model, rate) if facts.norm and math.isfinite(losses[0] + facts.norm) else None
    if optimizer is None or not rate:
        return Passes(tuple(losses), pass_seconds, rate, pass_seconds), facts
    looks = rate > own_rate(model, losses[0] - floor, facts.absolute_sum)
    steps = steps if looks else 1
    for left in reversed(range(steps)):
        _step(model, optimizer)
        if looks:
            losses.append(rows.backward() if left else rows.loss())
    if steps > 1:
        model.zero_grad(set_to_none=True)
    return Passes(tuple(losses), time.perf_counter() - start, rate, pass_seconds), facts


def learn_by_heart(
    rows: FewRows,
    bound: float,
    seconds: float,
    snapshot: Snapshot,
    *,
    rate: float | None = None,
    begun: Passes | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Passes:
    """Train until the loss is below `bound`, has not fallen for 20 steps, or `seconds` are over.

    The learning rate begins at one usual for what is trained, rises by a third with each slow fall of the loss, and is
    halved by a rise. A loss 2 nats above the start puts the model back, to begin anew at a tenth.

    Args:
        rows: What is learned, with the model.
        bound: Nats a supervised token.
        seconds: From now.
        snapshot: The model as it was at the start.
        rate: The first learning rate.
        begun: A first pass, whose gradients the model holds.
        clock: Seconds, for tests.
    """
    start, model = clock(), rows.losses.model
    rate = own_rate(model) if rate is None else rate
    highest = rate * _MOST_FASTER
    optimizer = _adam(model, rate)
    losses: list[float] = []
    latest = begun.pass_seconds if begun else 0.0
    while optimizer is not None:
        if begun and not losses:
            loss = begun.losses[0]
        else:
            before = clock()
            loss = rows.backward(enough=bound)
            latest = clock() - before
        ruined = bool(losses) and not loss < losses[0] + _RUIN_NATS
        losses.append(loss)
        if loss <= bound or clock() - start + latest > seconds or _is_stuck(losses):
            break
        if ruined:
            rate /= 10
            snapshot.put_back()
            optimizer = _adam(model, rate)
            continue
        if len(losses) > 1:
            rate = min(rate * _rate_change(loss / losses[-2]), highest)
            for group in optimizer.param_groups if optimizer else ():
                group["lr"] = rate
        if optimizer is not None:
            _step(model, optimizer)
    stuck = bool(losses) and losses[-1] > bound and _is_stuck(losses)
    return Passes(tuple(losses), clock() - start, rate, latest, stuck)


def _rate_change(share: float) -> float:
    """What the learning rate is multiplied by after a step that left this share of the loss."""
    if share > _RISE:
        return _SLOWER
    if share < _LARGE:
        return _NEARER
    return _FASTER if _SLOW < share < 1 else 1.0


def _is_stuck(losses: Sequence[float]) -> bool:
    if not math.isfinite(losses[0]):
        return True
    before, lately = losses[:-_PATIENCE], losses[-_PATIENCE:]
    return bool(before) and min(lately) > _PROGRESS * min(before)


def own_rate(model: nn.Module, way: float = 0.0, absolute_sum: float = 0.0) -> float:
    """A first learning rate.

    For what a method adds, the one whose step takes off the whole `way`, to first order: Polyak's step (1987,
    Introduction to Optimization, §5.3.2), where a first step of Adam at rate η takes off η·Σ|g|. For weights of the
    model in inverse proportion to their width, as Adam's best one goes (Yang et al. 2022, Tensor Programs V,
    arXiv:2203.03466, table 3).

    Args:
        model: What is trained.
        way: From the loss to its floor, nats.
        absolute_sum: Σ|g| now; 0 where not known.
    """
    if hasattr(model, "peft_config") or any("lora_" in name for name, _ in model.named_parameters()):
        known = 0 < way < math.inf and absolute_sum > 0
        return min(_HIGHEST_ADDED, way / absolute_sum) if known else _ADDED_RATE
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
