"""What the gradients of one step say: where they are, how large, and what a learning rate makes of them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import nn

_NUMBER = re.compile(r"\.\d+(?=\.)")
_GROUPS_TOLD = 6


@dataclass(frozen=True)
class GradientFacts:
    """Gradients of the mean loss before the first step.

    Attributes:
        trained: parameters that require a gradient, counted by number.
        norm: length of the whole gradient; not finite where one of its numbers is not.
        absolute_sum: Σ|g|: what a step of Adam at learning rate η takes off the loss, to first order, is η·Σ|g|, since
            its first step moves every parameter by η against the sign of its gradient (Kingma and Ba 2015, §2.1).
        by_group: length of the gradient of each kind of parameter (layer numbers left out), the largest first.
        bad: the first parameter whose gradient is not finite; empty where there is none.
    """

    trained: int
    norm: float
    absolute_sum: float
    by_group: tuple[tuple[str, float], ...] = ()
    bad: str = ""


@torch.no_grad()
def gradient_facts(model: nn.Module) -> GradientFacts:
    """Read the gradients that `model` holds now."""
    squares: defaultdict[str, float] = defaultdict(float)
    trained, absolute, bad = 0, 0.0, ""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        trained += parameter.numel()
        group = _NUMBER.sub("", name)
        if parameter.grad is None:
            squares[group] += 0.0
            continue
        gradient = parameter.grad.float()
        square = float(gradient.square().sum())
        squares[group] += square
        absolute += float(gradient.abs().sum())
        if not bad and not torch.isfinite(gradient).all():
            bad = name
    groups = sorted(((name, square**0.5) for name, square in squares.items()), key=lambda item: -item[1])
    return GradientFacts(trained, sum(squares.values()) ** 0.5, absolute, tuple(groups[:_GROUPS_TOLD]), bad)
