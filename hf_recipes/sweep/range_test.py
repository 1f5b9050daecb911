"""The learning-rate range test: one run whose rate rises exponentially, and what its losses say. Pure.

Smith 2017, "Cyclical Learning Rates for Training Neural Networks" (arXiv 1506.01186), section 3.3; the two suggestions
are those of fastai's `lr_find`: where the loss falls most steeply, and a tenth of where it is lowest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hf_recipes.core.errors import UserError

_EXPLODED = 4.0  # times the best, as in fastai; see `has_exploded`
_BETA = 0.9
_WIDTH = 0.03  # of the steps: the smoothing's standard deviation
FEWEST_STEPS = 20
_FIRST_STEPS = 10
_HIGHEST = 100.0
_APART = math.log(1.5)  # nearer rates tell nothing of each other


@dataclass(frozen=True)
class Suggestion:
    """What the test suggests.

    Attributes:
        learning_rate: two significant digits; None where the losses say nothing.
        reason: one sentence.
        lowest: rate at the lowest smoothed loss.
        steepest: rate at the steepest fall.
    """

    learning_rate: float | None
    reason: str
    lowest: float | None = None
    steepest: float | None = None

    @property
    def to_compare(self) -> tuple[float, ...]:
        """Rates worth a sweep, two significant digits: the suggested one, the steepest fall, and the lowest loss. How
        long a run is decides among them, which a test of a few steps cannot know."""
        if self.learning_rate is None or self.steepest is None or self.lowest is None:
            return ()
        ends = self.learning_rate, self.lowest
        between = [self.steepest] if all(abs(math.log(self.steepest / end)) > _APART for end in ends) else []
        return tuple(float(f"{rate:.2g}") for rate in sorted([*ends, *between]))


def read_range(text: str) -> tuple[float, float]:
    """``1e-7..1`` as two rates; raises `UserError` where it is none."""
    low, dots, high = text.partition("..")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = 0.0, 0.0
    if not dots or not 0 < bounds[0] < bounds[1] <= _HIGHEST:
        raise UserError(f"--lr_range: '{text}' is no range of learning rates: write LOW..HIGH, such as 1e-7..1.")
    return bounds


def rate_at(step: int, steps: int, low: float, high: float) -> float:
    """The rate of step 0, 1, … of `steps`: from `low` to `high` in equal factors."""
    return low * (high / low) ** (step / max(steps - 1, 1))


def running_average(losses: Sequence[float]) -> list[float]:
    """Exponential average without the bias of its start (Kingma and Ba 2015, section 3), for use while it runs."""
    averages, state = [], 0.0
    for number, loss in enumerate(losses, start=1):
        state = _BETA * state + (1 - _BETA) * loss
        averages.append(state / (1 - _BETA**number))
    return averages


def has_exploded(losses: Sequence[float]) -> bool:
    """Whether going on is of no use: a loss is not finite, or the running average is four times its lowest, or has
    risen above that of the first steps by as much as it had fallen, half of it at least (fine-tunes start at a low
    loss, of which four times is far; half is beyond the noise of small batches)."""
    if not losses:
        return False
    if not math.isfinite(losses[-1]):
        return True
    if len(losses) <= _FIRST_STEPS:
        return False
    averages = running_average(losses)[_FIRST_STEPS - 1 :]
    lowest, first = min(averages), averages[0]
    return averages[-1] > _EXPLODED * lowest or averages[-1] > first + max(first - lowest, 0.5 * first)


def smooth(losses: Sequence[float]) -> list[float]:
    """Gaussian average over the neighbours on both sides, which moves no minimum to the right as a running one does."""
    width = max(1.0, _WIDTH * len(losses))
    reach = math.ceil(3 * width)
    smoothed = []
    for middle in range(len(losses)):
        near = range(max(0, middle - reach), min(len(losses), middle + reach + 1))
        weights = [math.exp(-0.5 * ((index - middle) / width) ** 2) for index in near]
        smoothed.append(sum(w * losses[index] for w, index in zip(weights, near, strict=True)) / sum(weights))
    return smoothed


def suggest(rates: Sequence[float], losses: Sequence[float]) -> Suggestion:
    """A learning rate from the losses by rate; those from the first non-finite one on are left out."""
    end = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    rates, losses = list(rates[:end]), list(losses[:end])
    if len(losses) < FEWEST_STEPS:
        return Suggestion(
            None, f"The loss exploded after {len(losses)} steps, too few to judge: begin at a lower rate."
        )
    smoothed = smooth(losses)
    place = min(range(len(smoothed)), key=smoothed.__getitem__)
    noise = _noise(losses, smoothed)
    fall = smoothed[0] - smoothed[place]
    if fall <= noise:
        return Suggestion(
            None,
            f"The loss did not fall by more than its noise ({fall:.2g} against {noise:.2g}): try a higher end, more "
            "steps, or a larger batch.",
        )
    slopes = _slopes(rates, smoothed)
    steepest = min(range(place + 1), key=slopes.__getitem__)
    at_end = place >= len(smoothed) - 2 - round(_WIDTH * len(smoothed))
    rate = float(f"{rates[place] / 10:.2g}")
    reason = (
        f"a tenth of {rates[place]:.2g}, where the smoothed loss is lowest ({smoothed[place]:.4g}); it falls most "
        f"steeply at {rates[steepest]:.2g}"
    )
    if at_end:
        reason += "; the loss still fell at the end of the range: a higher end would tell more"
    return Suggestion(rate, reason, rates[place], rates[steepest])


def _noise(losses: Sequence[float], smoothed: Sequence[float]) -> float:
    """Standard error of the smoothed loss, from how far single losses are from it."""
    scatter = math.sqrt(sum((a - b) ** 2 for a, b in zip(losses, smoothed, strict=True)) / len(losses))
    return scatter / math.sqrt(max(1.0, 2 * math.sqrt(math.pi) * max(1.0, _WIDTH * len(losses))))


def _slopes(rates: Sequence[float], losses: Sequence[float]) -> list[float]:
    """Change of the loss per e-fold of the rate, at each step."""
    logs = [math.log(rate) for rate in rates]
    last = len(logs) - 1
    slopes = []
    for index in range(len(logs)):
        before, after = max(index - 1, 0), min(index + 1, last)
        slopes.append((losses[after] - losses[before]) / (logs[after] - logs[before]))
    return slopes
