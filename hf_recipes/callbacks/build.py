"""From a recipe's `watch:` to the watchers of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from hf_recipes.callbacks.config import WatchConfig
from hf_recipes.callbacks.grad_norm import GradNormWatch
from hf_recipes.callbacks.loss_watch import LossWatch
from hf_recipes.callbacks.memory_watch import MemoryWatch
from hf_recipes.callbacks.non_finite import LastGood, NonFiniteGuard
from hf_recipes.callbacks.overfit import OverfitWatch
from hf_recipes.callbacks.rank_watch import RankWatch
from hf_recipes.callbacks.schedule import ScheduleWatch
from hf_recipes.callbacks.throughput import ThroughputWatch
from hf_recipes.callbacks.trainable import TrainableGuard


def build_watchers(
    watch: Mapping[str, Any] | None = None, *, last_good: LastGood | None = None
) -> list[TrainerCallback]:
    """The watchers that a recipe's `watch:` asks for (all of them by default), ready for `Trainer(callbacks=…)`.

    Args:
        watch: thresholds and switches, see `WatchConfig`.
        last_good: from a run directory to its newest good checkpoint, for ``non_finite: restore``.

    Raises:
        UserError: see `WatchConfig.from_dict`.
    """
    config = WatchConfig.from_dict(watch)
    wanted: list[tuple[bool, Callable[[], TrainerCallback]]] = [
        (config.non_finite != "off", lambda: _guard(config, last_good)),
        (config.trainable, TrainableGuard),
        (config.grad_norm, lambda: _grad_norm(config)),
        (config.loss, lambda: LossWatch(config.spike_sigma)),
        (config.schedule, ScheduleWatch),
        (config.throughput, ThroughputWatch),
        (config.memory, MemoryWatch),
        (config.ranks, lambda: RankWatch(config.late_seconds, config.checksum_steps)),
        (config.overfit_patience > 0, lambda: _overfit(config)),
    ]
    return [build() for is_wanted, build in wanted if is_wanted]


def _guard(config: WatchConfig, last_good: LastGood | None) -> NonFiniteGuard:
    return NonFiniteGuard(
        config.non_finite,
        config.max_consecutive_skips,
        save_batches=config.save_bad_batches,
        last_good=last_good,
        lr_factor=config.restore_lr_factor,
        max_restores=config.max_restores,
    )


def _grad_norm(config: WatchConfig) -> GradNormWatch:
    return GradNormWatch(config.spike_sigma, config.grad_window, per_layer=config.grad_norm_per_layer)


def _overfit(config: WatchConfig) -> OverfitWatch:
    return OverfitWatch(config.overfit_patience, config.overfit_min_delta, config.overfit_stop)
