"""The pure detector behind `OverfitWatch`: train loss falls while eval loss, past its best, rises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["improved", "plateau", "rising", "overfit", "not_finite", "stale"]


@dataclass(frozen=True)
class OverfitVerdict:
    """What one evaluation was. Losses in nats a token; `train_loss` is the mean since the evaluation before."""

    kind: Kind
    step: int
    eval_loss: float
    best_step: int | None
    best_eval_loss: float | None
    train_loss: float | None
    train_loss_at_best: float | None


class OverfitTrend:
    """Counts evaluations in a row that lie more than `min_delta` above the best one.

    `patience` of them, while the mean train loss between evaluations has fallen since the best, are overfitting; it is
    said once for each best. Values of a step already seen are stale and not counted again; a NaN is counted once and
    changes nothing else.
    """

    def __init__(self, patience: int = 3, min_delta: float = 0.01) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.last_train_step = self.last_eval_step = -1
        self.train_sum, self.train_count = 0.0, 0
        self.train_loss: float | None = None
        self.train_loss_at_best: float | None = None
        self.best_step: int | None = None
        self.best_eval_loss: float | None = None
        self.above = 0
        self.told = False
        self.not_finite = 0

    def see_train(self, step: int, loss: float) -> None:
        """Take one logged train loss."""
        if step <= self.last_train_step:
            return
        self.last_train_step = step
        if not math.isfinite(loss):
            self.not_finite += 1
            return
        self.train_sum += loss
        self.train_count += 1

    def see_eval(self, step: int, loss: float) -> OverfitVerdict:
        """Take one evaluation's loss and judge the trend."""
        if step <= self.last_eval_step:
            return self._verdict("stale", step, loss)
        self.last_eval_step = step
        if not math.isfinite(loss):
            self.not_finite += 1
            return self._verdict("not_finite", step, loss)
        if self.train_count:
            self.train_loss = self.train_sum / self.train_count
            self.train_sum, self.train_count = 0.0, 0
        return self._verdict(self._judge(step, loss), step, loss)

    def _judge(self, step: int, loss: float) -> Kind:
        if self.best_eval_loss is None or loss < self.best_eval_loss:
            self.best_step, self.best_eval_loss = step, loss
            self.train_loss_at_best = self.train_loss
            self.above, self.told = 0, False
            return "improved"
        if self.train_loss_at_best is None:  # the best was evaluated before any training
            self.train_loss_at_best = self.train_loss
        if loss <= self.best_eval_loss + self.min_delta:
            self.above = 0
            return "plateau"
        self.above += 1
        if self.above >= self.patience and self._train_fell() and not self.told:
            self.told = True
            return "overfit"
        return "rising"

    def _train_fell(self) -> bool:
        now, then = self.train_loss, self.train_loss_at_best
        return now is not None and then is not None and now < then

    def _verdict(self, kind: Kind, step: int, loss: float) -> OverfitVerdict:
        return OverfitVerdict(
            kind, step, loss, self.best_step, self.best_eval_loss, self.train_loss, self.train_loss_at_best
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything seen, as JSON-safe data."""
        return {key: value for key, value in vars(self).items() if key not in ("patience", "min_delta")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave; thresholds are not part of it, so a resumed run may change them."""
        vars(self).update(state)
