"""What one optimizer step looked like, as all ranks agree on it. Plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NONE_BAD = float(2**24)
"""The code of a step without a bad micro-batch: above every other, and codes below it are exact in float32."""

LOSS, GRADIENT = 0, 1
NO_NORM = -1.0


@dataclass(frozen=True)
class BadMicroBatch:
    """The first micro-batch of a step, on the lowest rank, whose `what` ("loss" or "gradient") was not finite.

    `micro_batch` counts from 1. `rank` and `micro_batch` are None where gradients were averaged before anybody could
    see them: then only the step is known.
    """

    what: str
    micro_batch: int | None
    rank: int | None


@dataclass(frozen=True)
class RankShare:
    """One rank's part in a step.

    `micro_batches` are forward passes in training, `rows` and `positions` what they were given (padding included),
    `supervised_tokens` its labels other than −100, `norm` the total gradient norm that this rank holds (NaN when not
    finite, None when there is none).
    """

    step: int
    micro_batches: int
    rows: int
    positions: int
    supervised_tokens: int
    norm: float | None


@dataclass(frozen=True)
class Reading:
    """One step's measurement, the same on all ranks.

    `step` is the number the step will have in the logs. `norm` is the total norm before clipping: NaN when any
    gradient is not finite, None when there is none to be had (DeepSpeed without a norm). `loss` is the step's mean loss
    over micro-batches and ranks as the Trainer means it, but not filtered: NaN when any of it was; None where the loss
    is computed out of sight. `by_rank` is in rank order.
    """

    step: int
    norm: float | None
    bad: BadMicroBatch | None
    loss: float | None = None
    by_rank: tuple[RankShare, ...] = ()


@dataclass(frozen=True)
class Told:
    """What one rank tells the others of a step, as floats that survive float32; see `from_told`.

    `weighted_loss` sums losses that were divided by the number of items of the whole step, `mean_loss` sums means over
    one micro-batch each. `first_bad` is `code_of` the first bad micro-batch.
    """

    first_bad: float
    norm: float
    weighted_loss: float
    mean_loss: float
    weighted_calls: float
    mean_calls: float
    step: float
    rows: float
    positions: float
    supervised_tokens: float
    micro_batches: float


def code_of(micro_batch: int, rank: int, ranks: int, what: int) -> float:
    """A number that orders bad micro-batches by time, then rank; `micro_batch` counts from 0."""
    return float((micro_batch * ranks + rank) * 2 + what)


def from_told(
    told: Sequence[Told], step: int, *, items_of_all_ranks: bool, last_bad: int | None, averaged: bool = False
) -> Reading:
    """Put together what the ranks told.

    Args:
        items_of_all_ranks: weighted losses were divided by the items of all ranks, so they add up; else by each rank's.
        last_bad: the micro-batch (from 1) to name when only the reduced gradient was not finite; None if not known.
        averaged: gradients were averaged over the ranks at each micro-batch, so that a bad one is no rank's own.
    """
    norms = [_norm(each.norm) for each in told]
    known = [norm for norm in norms if norm is not None]
    norm = None if not known else max(known) if all(map(math.isfinite, known)) else math.nan
    code = min(each.first_bad for each in told)
    bad = None
    if code < NONE_BAD:
        place, what = divmod(int(code), 2)
        micro_batch, rank = divmod(place, len(told))
        known_rank = None if averaged and what == GRADIENT and len(told) > 1 else rank
        bad = BadMicroBatch("gradient" if what == GRADIENT else "loss", micro_batch + 1, known_rank)
    elif norm is not None and math.isnan(norm):
        bad = BadMicroBatch("gradient", last_bad, 0 if len(told) == 1 else None)
    return Reading(step, norm, bad, _loss(told, items_of_all_ranks), tuple(map(_share, told, norms)))


def _norm(value: float) -> float | None:
    return None if value == NO_NORM else value if math.isfinite(value) else math.nan


def _share(told: Told, norm: float | None) -> RankShare:
    return RankShare(
        step=int(told.step),
        micro_batches=int(told.micro_batches),
        rows=int(told.rows),
        positions=int(told.positions),
        supervised_tokens=int(told.supervised_tokens),
        norm=norm,
    )


def _loss(told: Sequence[Told], items_of_all_ranks: bool) -> float | None:
    if not any(each.weighted_calls or each.mean_calls for each in told):
        return None
    weighted = sum(each.weighted_loss for each in told) / (1 if items_of_all_ranks else len(told))
    means = [each.mean_loss / each.mean_calls for each in told if each.mean_calls]
    loss = weighted + (sum(means) / len(told) if means else 0.0)
    return loss if math.isfinite(loss) else math.nan
