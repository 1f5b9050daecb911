"""How far two models are apart by their logits: pure functions on tensors, no model in sight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hf_recipes.core.labels import IGNORED_LABEL

Rows = Sequence[torch.Tensor]  # one a row of tokens: (positions, words or labels), fp32


@dataclass(frozen=True)
class Distance:
    """`kl_mean` and `kl_max` in nats a position, `max_abs_difference` and `rms_difference` of logits (the latter with
    each position's mean taken out, which no probability depends on), `top1_agreement` in [0, 1]."""

    positions: int
    kl_mean: float
    kl_max: float
    max_abs_difference: float
    rms_difference: float
    top1_agreement: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def distance(one: Rows, other: Rows) -> Distance:
    """The distance over all positions of all rows; KL is that of `other` from `one`, in fp64.

    ``KL = Σ_w p(w)·(log p(w) − log q(w))`` at each position.
    """
    divergences, squares, largest, agreements = [], 0.0, 0.0, 0
    for x, y in zip(one, other, strict=True):
        divergences.append(_kl(x, y))
        difference = y - x
        largest = _max(largest, float(difference.abs().max()))
        squares += float(_centred(difference).square().sum(dtype=torch.float64))
        agreements += int((x.argmax(-1) == y.argmax(-1)).sum())
    kl = torch.cat(divergences)
    return Distance(
        positions=kl.numel(),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        max_abs_difference=largest,
        rms_difference=(squares / max(1, sum(x.numel() for x in one))) ** 0.5,
        top1_agreement=agreements / max(1, kl.numel()),
    )


def update_share(base: Rows, live: Rows, merged: Rows) -> float:
    """How much of what the adapter does to the base the merged model does: 1 when all of it, 0 when nothing, −1 when
    the opposite.

    The projection of (merged − base) on (live − base), over all logits: ``1 + ⟨merged − live, e⟩ / ⟨e, e⟩`` with
    ``e = live − base``. Rounding points in no direction and leaves it at 1; a wrong scale moves it in proportion.
    NaN when the adapter does nothing.
    """
    along, length = 0.0, 0.0
    for b, x, y in zip(base, live, merged, strict=True):
        effect = _centred(x - b)
        along += float((_centred(y - x) * effect).sum(dtype=torch.float64))
        length += float(effect.square().sum(dtype=torch.float64))
    return 1.0 + along / length if length else float("nan")


def losses(logits: torch.Tensor, row: Sequence[int], labels: Sequence[int] = ()) -> torch.Tensor:
    """Cross-entropy in nats of each next token of `row` that was learned, by its `labels` if there are any; in fp64."""
    targets = torch.tensor(row[1:], device=logits.device)
    each = -logits[:-1].double().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    if not labels:
        return each
    return each[torch.tensor([label != IGNORED_LABEL for label in labels[1 : len(row)]], device=each.device)]


def first_difference(one: torch.Tensor, other: torch.Tensor, start: int) -> tuple[int, float] | None:
    """Where a greedy answer to the same prompt parts: ``(tokens in common, gap)``, or None.

    Up to the first differing choice both have read the same tokens, so the choices on one text tell it.

    Args:
        one, other: logits on prompt and `one`'s answer, (tokens, words).
        start: tokens of the prompt.

    Returns:
        The gap is by how much `one` prefers its own token to the other's, in logits.
    """
    mine, yours = one[start - 1 : -1].argmax(-1), other[start - 1 : -1].argmax(-1)
    parted = (mine != yours).nonzero()
    if not len(parted):
        return None
    index = int(parted[0])
    choice = one[start - 1 + index]
    return index, float(choice[mine[index]] - choice[yours[index]])


def _kl(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    p, q = one.double().log_softmax(-1), other.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0)


def _centred(difference: torch.Tensor) -> torch.Tensor:
    return difference - difference.mean(-1, keepdim=True)


def _max(one: float, other: float) -> float:
    """`max` that keeps NaN."""
    return other if other != other or other > one else one
