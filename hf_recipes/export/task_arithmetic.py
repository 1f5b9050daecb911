"""The arithmetic of combined adapters: PEFT's own functions for the merge, the papers' definitions for its proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import torch
from torch import Tensor

from hf_recipes.export.combination import Combination, Combined

_SIGNED = ("ties", "dare_ties")
# PEFT draws from torch's one generator, which all threads share.
_RANDOM = Lock()


def combine(updates: Sequence[Tensor], combined: Combined) -> Tensor:
    """One update out of several, by PEFT's own functions (`peft.utils.merge_utils`).

    Args:
        updates: the task tensors, fp32, all of one shape.
        combined: the rule and its weights. TIES prunes and elects signs before the weights are multiplied in.
    """
    task_tensors, weights = list(updates), torch.tensor(combined.weights)
    with _RANDOM, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(combined.seed)
        return _PEFT[combined.rule.method](task_tensors, weights, combined.rule)


def _ties(task_tensors: list[Tensor], weights: Tensor, rule: Combination) -> Tensor:
    from peft.utils.merge_utils import ties

    return ties(task_tensors, weights, rule.density, rule.majority_sign_method)


def _dare_linear(task_tensors: list[Tensor], weights: Tensor, rule: Combination) -> Tensor:
    from peft.utils.merge_utils import dare_linear

    return dare_linear(task_tensors, weights, rule.density)


def _dare_ties(task_tensors: list[Tensor], weights: Tensor, rule: Combination) -> Tensor:
    from peft.utils.merge_utils import dare_ties

    return dare_ties(task_tensors, weights, rule.density, rule.majority_sign_method)


def _magnitude_prune(task_tensors: list[Tensor], weights: Tensor, rule: Combination) -> Tensor:
    from peft.utils.merge_utils import magnitude_prune

    return magnitude_prune(task_tensors, weights, rule.density)


_PEFT: dict[str, Callable[[list[Tensor], Tensor, Combination], Tensor]] = {
    "ties": _ties,
    "dare_linear": _dare_linear,
    "dare_ties": _dare_ties,
    "magnitude_prune": _magnitude_prune,
}


def expected_combination(updates: Sequence[tuple[Tensor, Tensor]], combined: Combined) -> tuple[Tensor, Tensor]:
    """What `combine` should give, straight from the papers' definitions and without PEFT, for the proof.

    Args:
        updates: each task tensor in fp64 by another route than the merge's, and the room its fp32 value may be off by.
        combined: the rule and its weights.

    Returns:
        The combined update in fp64, and the room to leave: the updates' own, and all of the updates where their errors
        leave open whether an element is among the largest, or which sign prevails.
    """
    rule = combined.rule
    density = rule.density or 1.0
    keep, open_ = _kept(updates, combined, density)
    scale = 1 / density if rule.method.startswith("dare") else 1.0
    values = torch.stack([value for value, _ in updates]) * scale * keep
    rooms = torch.stack([room for _, room in updates]) * scale
    weights = torch.tensor(combined.weights, dtype=torch.float64).view(-1, *[1] * (values.dim() - 1))
    undecided = open_.any(dim=0)
    if rule.method in _SIGNED:
        by_size = rule.majority_sign_method == "total"
        balance = (values if by_size else values.sign()).sum(dim=0)
        undecided |= ((keep > 0) & (rooms > 0) & (values.abs() <= rooms)).any(dim=0)
        if by_size:
            doubt = (rooms * keep).sum(dim=0)
            undecided |= (doubt > 0) & (balance.abs() <= doubt)
        agree = values.sign() == torch.where(balance >= 0, 1.0, -1.0)
        total = (values * weights * agree).sum(dim=0) / agree.sum(dim=0).clamp(min=1)
    else:
        total = (values * weights).sum(dim=0)
    reach = (torch.stack([value.abs() for value, _ in updates]) * scale * weights.abs()).sum(dim=0)
    small = torch.finfo(torch.float32).eps * (len(updates) + 4) * reach
    return total, (rooms * weights.abs()).sum(dim=0) + small + torch.where(undecided, 2 * reach, 0.0)


def _kept(updates: Sequence[tuple[Tensor, Tensor]], combined: Combined, density: float) -> tuple[Tensor, Tensor]:
    """Which elements of each update are kept (1 or 0), and of which that is open."""
    shape = (len(updates), *updates[0][0].shape)
    if density >= 1:
        return torch.ones(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)
    if combined.rule.method.startswith("dare"):
        random = torch.Generator().manual_seed(combined.seed)
        chance = torch.full(shape[1:], density)
        drawn = [torch.bernoulli(chance, generator=random) for _ in updates]
        return torch.stack(drawn).double(), torch.zeros(shape, dtype=torch.bool)
    keep, open_ = [], []
    for value, room in updates:
        size = value.abs()
        count = int(density * size.numel())
        dropped = size.numel() - count
        left = size.flatten().kthvalue(dropped).values if dropped else torch.tensor(-1.0)
        least = size.flatten().kthvalue(dropped + 1).values if count else torch.tensor(torch.inf)
        # Where the last kept and the first dropped are as near as the fp32 values may be off, either could be kept.
        off = 2 * room.max()
        near = ((size - least).abs() <= off) | ((size - left).abs() <= off)
        open_.append(near & (least - left <= off))
        keep.append((size >= least).double())
    return torch.stack(keep), torch.stack(open_)
