"""Whether a strategy can live with a network: what it sends at the measured speed, against the step's computing time.
Numbers in, a verdict out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_recipes.core.errors import UserError
from hf_recipes.doctor.network.curve import Collective, Curve
from hf_recipes.doctor.network.traffic import COMPARED, Messages, StepFigures, messages_of

# Above half of a step, communication is longer than the computation: however well the two overlap, ranks wait.
MOST = 0.5
SEND_ONCE = ("ddp", "zero1")  # a step, however many passes it has


@dataclass(frozen=True)
class Verdict:
    """Of one strategy on a measured network.

    Attributes:
        strategy: its name in a recipe.
        passed_bytes: what a rank passes on in a step (see `traffic`).
        messages: how many they are.
        communication_seconds: of a step, one message after the other.
        compute_seconds: of a step, without communication.
    """

    strategy: str
    passed_bytes: float
    messages: float
    communication_seconds: float
    compute_seconds: float

    @property
    def share(self) -> float:
        """Communication's share of a step in which nothing overlaps."""
        return self.communication_seconds / (self.communication_seconds + self.compute_seconds)

    @property
    def ok(self) -> bool:
        """Whether computation can hide it."""
        return self.share <= MOST


def communication_seconds(messages: Sequence[Messages], measured: Mapping[Collective, Curve]) -> float:
    """What messages take one after the other, in seconds.

    Raises:
        UserError: a collective was not measured.
    """
    seconds = 0.0
    for message in messages:
        if message.collective not in measured:
            raise UserError(f"{message.collective} was not measured: measure again with all collectives.")
        whole, rest = divmod(message.total_bytes, message.size_bytes)
        curve = measured[message.collective]
        seconds += whole * curve.seconds(message.size_bytes) + curve.seconds(rest)
    return seconds


def weigh(strategy: str, figures: StepFigures, measured: Mapping[Collective, Curve], compute_seconds: float) -> Verdict:
    """Weigh one strategy.

    Args:
        strategy: of a recipe.
        figures: of the job.
        measured: curves over all ranks of the job.
        compute_seconds: of one optimizer step on one rank, without communication.

    Raises:
        UserError: see `messages_of`; or the computing time is no time.
    """
    if not 0 < compute_seconds < float("inf"):
        raise UserError(f"step_seconds: {compute_seconds:g} is no time: give the seconds that a step computes.")
    messages = messages_of(strategy, figures)
    return Verdict(
        strategy,
        sum(message.passed_bytes for message in messages),
        sum(message.count for message in messages),
        communication_seconds(messages, measured),
        compute_seconds,
    )


def sentence_of(verdict: Verdict, others: Sequence[Verdict] = ()) -> str:
    """The verdict in a sentence, with a way out where it is no.

    Args:
        verdict: of the strategy chosen.
        others: of strategies that could take its place.
    """
    count = max(1, round(verdict.messages))
    told = (
        f"{verdict.strategy} passes {_size(verdict.passed_bytes)} a rank and step in {count:,} messages, which takes "
        f"{_time(verdict.communication_seconds)} on this network beside {_time(verdict.compute_seconds)} "
        f"of computing: {verdict.share:.0%} of the step"
    )
    if verdict.ok:
        return f"{told}. The strategy can live with this network."
    better = min(
        (each for each in others if each.share < 0.9 * verdict.share), key=lambda each: each.share, default=None
    )
    way = f"take {better.strategy} where it fits ({better.share:.0%}), " if better else ""
    more = "raise gradient_accumulation_steps" if verdict.strategy in SEND_ONCE else "take a larger micro-batch"
    return (
        f"{told}, more than computation can hide: {way}{more}, train fewer parameters (LoRA has gradients only for the "
        "adapter), or find a faster network."
    )


def weigh_others(
    strategy: str, figures: StepFigures, measured: Mapping[Collective, Curve], compute_seconds: float
) -> list[Verdict]:
    """The same job by the strategies that could take the place of `strategy`."""
    return [weigh(other, figures, measured, compute_seconds) for other in COMPARED if other != strategy]


def _size(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} bytes"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
