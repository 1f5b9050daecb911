"""The pure detector behind `LossWatch`: spikes, rises, oscillations and constants in a run's training loss."""

from __future__ import annotations

import heapq
import math
import statistics
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Kind = Literal[
    "warming_up", "healthy", "spike", "rising", "shifted", "oscillating", "stuck", "unlearned", "not_finite", "stale"
]

# What is told, and in which order where several begin at one step.
_ORDER: tuple[Kind, ...] = ("spike", "rising", "shifted", "oscillating", "stuck", "unlearned")

# The standard deviation of a normal distribution is 1.4826 times its median absolute deviation, and its median over n
# values scatters by 1.2533 standard deviations / √n.
_MAD_TO_SIGMA = 1.4826
_MEDIAN_SCATTER = 1.2533

_SPAN = 16  # steps whose median is the level of the loss
_FIRST = 4  # losses whose median is the level at which the run began
_LONG = 128  # steps of all losses kept
_EXTREMES = 256  # steps whose largest deviations a spike must exceed

# Differences are taken of asinh(loss / 2c): the logarithm well above c, linear below it, so that a converged loss may
# vary by factors, and a negative one has its place. c is this share of the first level, and at least so many nats.
_SOFT_SHARE, _SOFT_LEAST = 0.03, 0.05

_LEAST_SPIKE = math.log(2.0)
_LEAST_RISE = math.log(1.3)
_LEAST_ABOVE = math.log(1.5)
_EXPLOSION = math.log(3.0)
_LEAST_WRECK, _WRECK_SIGMAS = math.log(1.2), 6.0
_RISE_SIGMAS = 7.0
_CLIMB_STEPS, _ABOVE_STEPS, _HIGH_STEPS = 4, 16, 48

EQUAL_STEPS, NARROW_STEPS, _BF16_STEPS = 5, 10, 30
_NARROW = 1e-4  # relative range that is no movement
_LOCKED_WITHIN = 0.01
_LEAST_LR_SHARE = 0.1  # steps below this share of the peak learning rate may well change nothing


@dataclass(frozen=True)
class LossVerdict:
    """What one step's loss was, in the loss's own unit (nats a token).

    `first` marks the first of an unbroken series of its kind: the one worth an alarm. `level` is the median of the
    steps before (of a constant: its value), `limit` the loss that this step would have had to exceed for a spike,
    `best` the lowest level so far, `best_step` its step, `prior` the name of the reference level that a stuck loss
    equals or stays above, `prior_value` its value, `steps` how long the loss has been constant.
    """

    kind: Kind
    step: int
    loss: float
    first: bool = False
    level: float | None = None
    limit: float | None = None
    best: float | None = None
    best_step: int | None = None
    prior: str | None = None
    prior_value: float | None = None
    steps: int = 0


class LossTrend:
    """Judges one training loss a step against the run's own past.

    - spike: far above the median of the 16 steps before, by `sigma` robust deviations of `window` healthy steps, by a
      factor of two at least, and further out than all but one of the last 256 steps. A converged loss that stays
      below where the run began is a spike at its second step in a row: one mislabelled row is none.
    - rising: the level lies clearly above the lowest one and still climbs, or lies above where the run began, or has
      exploded, or has never come below the very first loss, that of the weights as loaded, and stays far above it.
      A new, stable level in between is "shifted": another source of data, more likely than not.
    - oscillating: losses alternate around a level that does not fall, more than three times as widely as before.
    - stuck: constant to the last bit, or within 1e-4. Losses that bfloat16 can hold repeat by rounding: they are given
      more steps. Also: at a reference level (`reference_levels`), or above all of them, and not falling, for twice
      `locked_after` steps; after the first half it is "unlearned", for some runs only begin slowly.

    Spikes are kept out of what is learned until 16 in a row are a level; NaN and infinity always. A step seen before
    is stale and not counted again.

    Attributes:
        reference_levels: called at the first need for it, when the loss has been flat; gives names and values of the
            losses of a model that has learned nothing of the inputs.
    """

    def __init__(self, sigma: float = 8.0, window: int = 64, warmup: int = 16, locked_after: int = 50) -> None:
        self.sigma, self.warmup, self.locked_after = sigma, warmup, locked_after
        self.reference_levels: Callable[[], Mapping[str, float]] = dict
        self.last_step = -1
        self.counts: Counter[str] = Counter()
        self.first_losses: list[float] = []
        self.calm: deque[float] = deque(maxlen=_SPAN)
        self.deviations: deque[float] = deque(maxlen=window)
        self.extremes: deque[float] = deque(maxlen=_EXTREMES)
        self.outside: list[float] = []
        self.recent: deque[float] = deque(maxlen=_LONG)
        self.lengths: deque[float] = deque(maxlen=_SPAN)
        self.moving: deque[float] = deque(maxlen=max(locked_after, _BF16_STEPS))
        self.best: float | None = None
        self.best_step: int | None = None
        self.best_length: float | None = None
        self.high = self.above = self.climbing = self.wrecked = 0
        self.start: float | None = None
        self.least_rise: float | None = None
        self.equal = 0
        self.moved = True
        self.prior: str | None = None
        self.unlearned_steps = 0
        self.told: list[str] = []
        self._take_scales()

    def see(self, step: int, loss: float, learning_rate_share: float = 1.0, length: float | None = None) -> LossVerdict:
        """Judge one step's loss and learn from it.

        Args:
            step: number of the step.
            loss: mean loss over all micro-batches and ranks.
            learning_rate_share: this step's learning rate relative to the run's peak; the loss after a step below a
                tenth of it may well be the same.
            length: mean tokens a row of this step's batch; a rise that goes with another length is not told.
        """
        if step <= self.last_step:
            return LossVerdict("stale", step, loss)
        self.last_step = step
        if not math.isfinite(loss):
            return self._tell("not_finite", step, loss, None, None)
        self._take_scales()
        self.start = loss if self.start is None else self.start
        level, limit = self._spike_limit()
        holds = {
            "spike": self._is_spike(loss, level, limit) and self.least_rise is None,
            **self._rise(step, loss, length),
            "oscillating": self._oscillates(),
            **self._stands(loss, learning_rate_share),
        }
        self.told = [kind for kind in self.told if holds.get(kind) or kind not in _ORDER]
        new = next((kind for kind in _ORDER if holds[kind] and kind not in self.told), None)
        old = next((kind for kind in _ORDER if holds[kind]), None)
        quiet: Kind = "healthy" if len(self.recent) > self.warmup else "warming_up"
        return self._tell(new or old or quiet, step, loss, level, limit)

    def _tell(self, kind: Kind, step: int, loss: float, level: float | None, limit: float | None) -> LossVerdict:
        first = kind not in self.told
        if kind == "not_finite":
            self.told.append(kind) if first else None
        else:
            self.told = [each for each in self.told if each != "not_finite"]
            if first and kind in _ORDER:
                self.told.append(kind)
        self.counts[kind] += 1
        if kind in ("stuck", "unlearned"):
            level = self._stuck_level()
        value = self.reference_levels().get(self.prior) if self.prior is not None else None
        best = self.best, self.best_step
        return LossVerdict(kind, step, loss, first, level, limit, *best, self.prior, value, self.equal)

    # Levels and deviations

    def _take_scales(self) -> None:
        """What this step is measured by: softness in nats, and the robust deviation of steps from their level."""
        self._softness = max(_SOFT_SHARE * abs(self.first_level), _SOFT_LEAST)
        self._noise = _MAD_TO_SIGMA * _mad(self.deviations) if self.deviations else 0.0

    def _soften(self, loss: float) -> float:
        return math.asinh(loss / (2 * self._softness))

    @property
    def first_level(self) -> float:
        """The level at which the run began: the median of its first losses (0 before any)."""
        return statistics.median(self.first_losses) if self.first_losses else 0.0

    # Spikes

    def _spike_limit(self) -> tuple[float | None, float | None]:
        """The level before this step, and the loss above which it is a spike (None while warming up)."""
        if len(self.calm) < _FIRST:
            return None, None
        level = statistics.median(self.calm)
        if len(self.recent) < self.warmup:
            # Too little is known for a band: only what nobody would call noise.
            return level, max(10 * max(self.recent), max(self.recent) + 5)
        usual = heapq.nlargest(2, self.extremes)[-1] if len(self.extremes) > 1 else 0.0
        # Few deviations may lie close together by chance, and have not seen every kind of row yet.
        out = max(max(self.sigma * self._noise, _LEAST_SPIKE) * (1 + 8 / len(self.deviations)), 1.25 * usual)
        return level, 2 * self._softness * _sinh(self._soften(level) + out)

    def _is_spike(self, loss: float, level: float | None, limit: float | None) -> bool:
        if level is None or limit is None or loss <= limit:
            self._learn(loss, level)
            return False
        self.outside.append(loss)
        if len(self.outside) >= _SPAN:  # a level of its own, whose height is judged as a rise
            self.calm.clear()
            self.calm.extend(self.outside)
            self.outside.clear()
            return False
        self.extremes.append(self._soften(loss) - self._soften(level))
        converged = level < 0.1 * self.first_level
        return not converged or len(self.outside) > 1

    def _learn(self, loss: float, level: float | None) -> None:
        self.outside.clear()
        if level is not None:
            deviation = self._soften(loss) - self._soften(level)
            self.deviations.append(deviation)
            self.extremes.append(deviation)
        self.calm.append(loss)
        if len(self.first_losses) < _FIRST:
            self.first_losses.append(loss)

    # Rises

    def _rise(self, step: int, loss: float, length: float | None) -> dict[str, bool]:
        self.recent.append(loss)
        if length is not None and length > 0:
            self.lengths.append(math.log(length))
        rising, shifted = self._rises_or_shifts(step)
        return {"rising": rising, "shifted": shifted}

    def _rises_or_shifts(self, step: int) -> tuple[bool, bool]:
        scatter = _MEDIAN_SCATTER * self._noise / math.sqrt(_SPAN)
        least = max(_LEAST_RISE, _RISE_SIGMAS * scatter)
        if len(self.recent) < _SPAN:
            return self._start_rise(least, self.least_rise is not None or self._explodes()), False
        level = statistics.median(list(self.recent)[-_SPAN:])
        self._take_best(step, level)
        assert self.best is not None
        rise = self._soften(level) - self._soften(self.best)
        if self.least_rise is not None:  # by the measure of its beginning: what rises also scatters
            newest = self._soften(statistics.median(list(self.recent)[-3:])) - self._soften(self.best)
            self.least_rise = self.least_rise if max(rise, newest) > self.least_rise / 2 else None
            return self.least_rise is not None, False
        if self._explodes() or self._is_wrecked(level):
            return self._start_rise(least, True), False
        if rise <= least or self._explained_by_length():
            self.high = self.above = self.climbing = 0
            return False, False
        rising, shifted = self._judge_height(step, level, least)
        return self._start_rise(least, rising), shifted

    def _start_rise(self, least: float, rising: bool) -> bool:
        if rising:
            self.high = self.above = self.climbing = 0
            self.least_rise = self.least_rise or least
        return rising

    def _take_best(self, step: int, level: float) -> None:
        if self.best is None:
            self._set_best(min(step, _FIRST), self.first_level)
        if self.best is None or level < self.best:
            self._set_best(step, level)

    def _set_best(self, step: int, level: float) -> None:
        self.best, self.best_step = level, step
        self.best_length = statistics.median(self.lengths) if self.lengths else None

    def _judge_height(self, step: int, level: float, least: float) -> tuple[bool, bool]:
        self.high += 1
        from_start = self._soften(level) - self._soften(self.first_level)
        self.above = self.above + 1 if from_start > max(least, _LEAST_ABOVE) else 0
        self.climbing = self.climbing + 1 if self._climbs(_SPAN // 2, 4) else max(self.climbing - 1, 0)
        if self.climbing >= _CLIMB_STEPS or self.above >= _ABOVE_STEPS:
            return True, False
        if self.high < _HIGH_STEPS:
            return False, False
        rising = self._climbs(_SPAN, 3)
        if not rising:  # judged against this level from now on
            self._set_best(step, level)
            self.high = 0
            self.first_losses = [max(level, self.first_level)]
        return rising, not rising

    def _climbs(self, span: int, blocks: int) -> bool:
        """Whether the medians of the last blocks rise one by one; a step from one level to another does it twice."""
        losses = list(self.recent)[-span * blocks :]
        if len(losses) < span * blocks:
            return False
        medians = [self._soften(statistics.median(losses[at : at + span])) for at in range(0, len(losses), span)]
        whole = medians[-1] - medians[0]
        scatter = _MEDIAN_SCATTER * self._noise / math.sqrt(span)
        return whole > 3 * scatter and all(after - before > 0.1 * whole for before, after in pairwise(medians))

    def _explodes(self) -> bool:
        """Whether the last three losses lie above three times the level at which the run began."""
        losses = list(self.recent)
        if len(losses) < 6:
            return False
        base = statistics.median(losses[: min(_FIRST, len(losses) - 3)]) if len(losses) < _SPAN else self.first_level
        return self._soften(min(losses[-3:])) - self._soften(base) > max(_EXPLOSION, 4 * self._noise)

    def _is_wrecked(self, level: float) -> bool:
        """Whether training has only made it worse: a rate so high that the first steps undid what was loaded."""
        assert self.start is not None
        assert self.best is not None
        above = self._soften(level) - self._soften(self.start)
        far = above > max(_LEAST_WRECK, _WRECK_SIGMAS * self._noise) and self.best > self.start
        self.wrecked = self.wrecked + 1 if far else 0
        if self.wrecked < _SPAN:
            return False
        self._set_best(1, self.start)  # what it has to come back to
        return True

    def _explained_by_length(self) -> bool:
        if self.best_length is None or len(self.lengths) < _SPAN:
            return False
        scatter = _MEDIAN_SCATTER * _MAD_TO_SIGMA * _mad(self.lengths) / math.sqrt(_SPAN)
        return abs(statistics.median(self.lengths) - self.best_length) > max(math.log(1.25), 4 * scatter)

    # Oscillations

    def _oscillates(self) -> bool:
        losses = list(self.recent)
        if len(losses) < 2 * _SPAN or self.least_rise is not None:
            return False
        now, before = losses[-_SPAN:], losses[-3 * _SPAN : -_SPAN]
        level, earlier = statistics.fmean(now), statistics.fmean(before)
        swings = [loss - level for loss in now]
        turns = sum(first * second < 0 for first, second in pairwise(swings))
        width = statistics.fmean(abs(swing) for swing in swings)
        width_before = statistics.fmean(abs(loss - earlier) for loss in before)
        if "oscillating" in self.told:  # until it has calmed down
            return turns >= _SPAN // 2 and width > 0.1 * abs(level)
        grown = width > 3 * width_before and width > 0.1 * abs(level) and width > self._softness
        return turns >= _SPAN - 3 and grown and level > 0.98 * earlier

    # Constants

    def _stands(self, loss: float, learning_rate_share: float) -> dict[str, bool]:
        moved, self.moved = self.moved, learning_rate_share >= _LEAST_LR_SHARE
        if moved:
            self.equal = self.equal + 1 if self.moving and loss == self.moving[-1] else 1
            self.moving.append(loss)
        elif self.moving and loss != self.moving[-1]:
            self.equal = 0
        repeats = self.equal >= (_BF16_STEPS if loss and _held_in_bf16(loss) else EQUAL_STEPS)
        stands = self._worth_learning(loss) and (repeats or self._barely_moves())
        self._count_unlearned()
        stuck = stands or self.unlearned_steps > self.locked_after
        return {"stuck": stuck, "unlearned": self.unlearned_steps > 0 and not stuck}

    def _worth_learning(self, loss: float) -> bool:
        """A converged loss may stand still; one that was exactly 0 from the start has nothing to learn from."""
        if loss == 0:
            return not any(self.recent)
        return abs(loss) > max(0.02 * abs(self.first_level), 0.1 * _SOFT_LEAST)

    def _barely_moves(self) -> bool:
        losses = list(self.moving)[-NARROW_STEPS:]
        if all(map(_held_in_bf16, losses)):
            losses = list(self.moving)[-_BF16_STEPS:]
            if len(losses) < _BF16_STEPS:
                return False
        if len(losses) < NARROW_STEPS:
            return False
        level = abs(statistics.median(losses))
        return max(losses) - min(losses) < _NARROW * level and level > 0.5 * abs(self.first_level)

    def _count_unlearned(self) -> None:
        """Count steps at or above the level of knowing nothing; steps in which the loss falls are passed over."""
        losses = list(self.moving)[-self.locked_after :]
        if len(losses) < self.locked_after:
            return
        half = len(losses) // 2
        fall = statistics.fmean(losses[:half]) - statistics.fmean(losses[half:])
        scatter = _MAD_TO_SIGMA * _mad(losses) * math.sqrt(2 / half)
        falls = fall > max(0.5 * _LOCKED_WITHIN * abs(losses[0]), 2 * scatter)
        if self.prior is None and falls:
            return
        middles = (statistics.fmean(losses), statistics.median(losses))
        self.prior = self._level_met(middles)
        self.unlearned_steps = self.unlearned_steps + (not falls) if self.prior else 0

    def _level_met(self, middles: tuple[float, float]) -> str | None:
        """The reference level that the losses are at; once met, until they are clearly below it."""
        levels = self.reference_levels()
        met = levels.get(self.prior or "")
        if met is not None and max(middles) >= met * (1 - 3 * _LOCKED_WITHIN):
            return self.prior
        near = [name for name, value in levels.items() if any(_close(each, value, _LOCKED_WITHIN) for each in middles)]
        lowest = min(levels, key=lambda name: levels[name], default=None)
        if not near and lowest is not None and min(middles) > levels[lowest]:
            return lowest  # worse than knowing nothing
        return near[0] if near else None

    def _stuck_level(self) -> float:
        return statistics.median(list(self.moving)[-(self.locked_after if self.prior else EQUAL_STEPS) :])

    # State

    def state_dict(self) -> dict[str, Any]:
        """Everything learned, as JSON-safe data (all values kept are finite)."""
        own = {key: value for key, value in vars(self).items() if key not in _NO_STATE}
        return {key: list(value) if isinstance(value, deque) else _plain(value) for key, value in own.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave; thresholds are not part of it, so a resumed run may change them."""
        for key, value in state.items():
            mine = getattr(self, key)
            if isinstance(mine, deque):
                mine.clear()
                mine.extend(value)
            else:
                setattr(self, key, Counter(value) if isinstance(mine, Counter) else _plain(value))


# Thresholds are the present run's; the scales are taken anew at each step.
_NO_STATE = ("sigma", "warmup", "locked_after", "reference_levels", "_softness", "_noise")


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value


def _mad(values: Iterable[float]) -> float:
    kept: Sequence[float] = list(values)
    centre = statistics.median(kept)
    return statistics.median(abs(value - centre) for value in kept)


def _close(value: float, level: float, within: float) -> bool:
    return abs(value - level) <= within * abs(level)


def _held_in_bf16(value: float) -> bool:
    """Whether the value is one of bfloat16's, the upper half of a float32."""
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0] & 0xFFFF == 0
    except OverflowError:
        return False


def _sinh(value: float) -> float:
    return math.sinh(value) if value < 700.0 else math.inf
