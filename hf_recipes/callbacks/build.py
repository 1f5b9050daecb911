"""From a recipe's `watch:` to the watchers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from hf_recipes.callbacks.config import WatchConfig
from hf_recipes.callbacks.grad_norm import GradNormWatch
from hf_recipes.callbacks.non_finite import NonFiniteGuard
from hf_recipes.callbacks.overfit import OverfitWatch
from hf_recipes.callbacks.trainable import TrainableGuard


def build_watchers(watch: Mapping[str, Any] | None = None) -> list[TrainerCallback]:
    """The watchers that a recipe's `watch:` asks for (all of them by default), ready for `Trainer(callbacks=…)`.

    Raises:
        UserError: see `WatchConfig.from_dict`.
    """
    config = WatchConfig.from_dict(watch)
    watchers: list[TrainerCallback] = []
    if config.non_finite != "off":
        watchers.append(NonFiniteGuard(config.non_finite, config.max_consecutive_skips))
    if config.trainable:
        watchers.append(TrainableGuard())
    if config.grad_norm:
        watchers.append(GradNormWatch(config.spike_sigma, config.grad_window))
    if config.overfit_patience:
        watchers.append(OverfitWatch(config.overfit_patience, config.overfit_min_delta, config.overfit_stop))
    return watchers
