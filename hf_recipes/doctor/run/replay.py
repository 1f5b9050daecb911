"""A run's numbers shown once more to the detectors that watch a training: what they would have said, and when."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from hf_recipes.callbacks.loss_trend import LossTrend, LossVerdict
from hf_recipes.callbacks.norm_band import NormBand, NormVerdict
from hf_recipes.callbacks.overfit_trend import OverfitTrend, OverfitVerdict
from hf_recipes.callbacks.schedule_shape import RateTrack, RateVerdict

_KEPT = 20  # verdicts of one kind; of more the number is kept


@dataclass
class Replay:
    """Feeds numbers to the detectors, one at a time, and keeps the first verdicts of each kind.

    Memory does not grow with the run. Where a log holds one value for several steps, detectors that count steps count
    logs: they are told later, never sooner.

    Attributes:
        counts: how often each verdict was first of a series, by ``detector:kind``.
        losses, gradients, evaluations: how many finite values were seen.
        rounded: values come from a log that prints four digits, where equal ones in a row say little.
        longest_equal: most losses in a row that were the same.
        first_loss, last_loss, last_eval: in nats a token.
    """

    loss: LossTrend = field(default_factory=LossTrend)
    norm: NormBand = field(default_factory=NormBand)
    overfit: OverfitTrend = field(default_factory=OverfitTrend)
    rate: RateTrack = field(default_factory=RateTrack)
    verdicts: dict[str, list[LossVerdict | NormVerdict | OverfitVerdict | RateVerdict]] = field(default_factory=dict)
    steps: dict[str, list[int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    rounded: bool = False
    longest_equal: int = 0
    zero_losses: int = 0
    losses: int = 0
    gradients: int = 0
    evaluations: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    last_step: int = 0
    last_rate: float | None = None
    last_eval: float | None = None
    _equal: int = 0

    def see(self, step: int, loss: float | None = None, norm: float | None = None, rate: float | None = None) -> None:
        """One log of training.

        Args:
            step: updates made.
            loss: training loss, nats a token.
            norm: total gradient norm.
            rate: learning rate.
        """
        self.last_step = max(self.last_step, step)
        if rate is not None and math.isfinite(rate):
            self._keep("rate", self.rate.see(step, rate, None), step)
            self.last_rate = rate
        if loss is not None:
            self._see_loss(step, loss)
        if norm is not None:
            self.gradients += math.isfinite(norm)
            self._keep("grad_norm", self.norm.judge(norm), step)

    def _see_loss(self, step: int, loss: float) -> None:
        share = self.last_rate / self.rate.peak if self.last_rate is not None and self.rate.peak > 0 else 1.0
        self._keep("loss", self.loss.see(step, loss, share), step)
        self.overfit.see_train(step, loss)
        if math.isfinite(loss):
            self.losses += 1
            self._equal = self._equal + 1 if loss == self.last_loss else 1
            self.longest_equal = max(self.longest_equal, self._equal)
            self.zero_losses += loss == 0
            self.first_loss = loss if self.first_loss is None else self.first_loss
            self.last_loss = loss

    def see_eval(self, step: int, loss: float) -> None:
        """One evaluation's loss."""
        self.last_step = max(self.last_step, step)
        if math.isfinite(loss):
            self.evaluations += 1
            self.last_eval = loss
        verdict = self.overfit.see_eval(step, loss)
        if verdict.kind in ("overfit", "not_finite"):
            self._note("overfit", verdict.kind, verdict, step)

    def _keep(self, detector: str, verdict: LossVerdict | NormVerdict | RateVerdict, step: int) -> None:
        if verdict.first and verdict.kind not in ("healthy", "warming_up", "fine", "stale"):
            self._note(detector, verdict.kind, verdict, step)

    def _note(
        self, detector: str, kind: str, verdict: LossVerdict | NormVerdict | OverfitVerdict | RateVerdict, step: int
    ) -> None:
        name = f"{detector}:{kind}"
        self.counts[name] += 1
        if len(kept := self.verdicts.setdefault(name, [])) < _KEPT:
            kept.append(verdict)
            self.steps.setdefault(name, []).append(step)

    @property
    def peak_rate(self) -> float | None:
        """The highest learning rate seen; None without one."""
        return self.rate.peak if self.rate.peak_step else None

    def when(self, name: str) -> str:
        """The steps at which a verdict came, for people: ``step 4``, ``steps 4, 9, 12 (and 3 more)``."""
        steps = self.steps.get(name, [])
        shown = ", ".join(map(str, steps[:4]))
        more = self.counts[name] - len(steps[:4])
        return f"step{'s' if self.counts[name] > 1 else ''} {shown}" + (f" (and {more} more)" if more > 0 else "")
