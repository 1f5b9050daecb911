"""Thresholds of the watchers, as written under `watch:` in a recipe. Imports neither torch nor transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hf_recipes.core.errors import UserError, nearest

_SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


def _key(default: Any, help: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True)
class WatchConfig:
    """What is watched and when an alarm is raised. Each field's `metadata["help"]` is its line in the key table."""

    non_finite: str = _key(
        "stop",
        "What a non-finite loss or gradient does, before it reaches the weights: stop the run, skip the update, "
        "restore the newest verified checkpoint with a lower learning rate, off.",
        choices=("stop", "skip", "restore", "off"),
    )
    max_consecutive_skips: int = _key(10, "Updates skipped in a row after which the run stops all the same.", minimum=1)
    max_restores: int = _key(3, "Checkpoints restored in a run after which it stops all the same.", minimum=1)
    restore_lr_factor: float = _key(0.5, "What a restore multiplies the learning rate by.", minimum=1e-3, maximum=1.0)
    save_bad_batches: bool = _key(
        True, "Write the rows of a micro-batch that was not finite to bad_batches/, to read and to replay."
    )
    trainable: bool = _key(True, "Stop when nothing is trainable, or the first gradient is zero.")
    grad_norm: bool = _key(True, "Watch the gradient norm before clipping. Costs one pass over the gradients a step.")
    grad_norm_per_layer: bool = _key(False, "Measure every layer's gradient norm at every step. Costs one more sync.")
    spike_sigma: float = _key(
        8.0,
        "Robust standard deviations from the run's own median, of log(norm) and of the loss, that count as a spike.",
        minimum=1.0,
    )
    grad_window: int = _key(128, "Healthy steps that the gradient norm's band is learned from.", minimum=16)
    loss: bool = _key(
        True, "Watch the loss of every step: spikes, rising, stuck at a constant, swinging. Costs nothing."
    )
    schedule: bool = _key(True, "Judge the learning-rate schedule before the first step, and hold the run to it.")
    throughput: bool = _key(
        True, "Log tokens a second, waiting for data, utilisation and MFU; say when data come too slowly."
    )
    memory: bool = _key(True, "Say when memory grows from step to step (a leak).")
    ranks: bool = _key(
        True,
        "With several ranks: same seed, data, steps and weights on all; name the one that is late, gone or silent.",
    )
    late_seconds: float = _key(
        60.0, "Seconds without a sign after which a rank that others wait for is named.", minimum=1.0
    )
    checksum_steps: int = _key(100, "Steps between comparisons of the weights on all ranks.", minimum=1)
    overfit_patience: int = _key(
        3, "Evaluations in a row above the best, train loss falling, that count as overfitting; off or 0: not watched."
    )
    overfit_min_delta: float = _key(0.01, "Rise of the eval loss (nats) that is more than noise.")
    overfit_stop: bool = _key(False, "Stop the run when overfitting is seen, not only say so.")
    samples: int = _key(0, "Eval rows answered by the model at each evaluation, to be read. Costs their generation.")
    sample_tokens: int = _key(64, "Limit of a sample answer.", minimum=1)
    live_report: bool = _key(True, "Rewrite report.html while training, at about 1 % of the run's time.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> WatchConfig:
        """Build the thresholds from a recipe's `watch:`; absent keys keep their defaults.

        Numbers written as text are read (YAML leaves ``1e-3`` text), and ``off`` means False or 0.

        Raises:
            UserError: an unknown key, a value of another type, or one out of its range; the sentence names the key.
        """
        if values is not None and not isinstance(values, Mapping):
            raise UserError(f"watch: must hold keys and values, such as spike_sigma: 8, not {values!r}.")
        known = {spec.name: spec for spec in fields(cls)}
        unknown = [key for key in values or {} if key not in known]
        if unknown:
            hint = nearest(str(unknown[0]), known) or f": known are {', '.join(known)}"
            raise UserError(f"watch.{unknown[0]} is not a threshold{hint}.")
        read = {key: _read(key, value, known[key]) for key, value in (values or {}).items()}
        return cls(**read)

    def to_dict(self) -> dict[str, Any]:
        """All thresholds as plain data."""
        return asdict(self)


def _read(key: str, value: Any, spec: Any) -> Any:
    if isinstance(spec.default, str):
        return _choice(key, value, spec.metadata["choices"])
    if isinstance(spec.default, bool):
        return _switch(key, value)
    number = _number(key, value)
    minimum = spec.metadata.get("minimum", 0)
    if not number >= minimum:
        raise UserError(f"watch.{key} must be at least {minimum}, not {value!r}.")
    if number > (maximum := spec.metadata.get("maximum", math.inf)):
        raise UserError(f"watch.{key} must be at most {maximum}, not {value!r}.")
    if isinstance(spec.default, float):
        return number
    if number != int(number):
        raise UserError(f"watch.{key} must be a whole number, not {value!r}.")
    return int(number)


def _choice(key: str, value: Any, choices: tuple[str, ...]) -> str:
    name = "off" if value is False else str(value)
    if name not in choices:
        raise UserError(f"watch.{key} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}.")
    return name


def _switch(key: str, value: Any) -> bool:
    switch = _SWITCH.get(str(value).lower())
    if switch is None:
        raise UserError(f"watch.{key} must be on or off, not {value!r}.")
    return switch


def _number(key: str, value: Any) -> float:
    if value is False or str(value).lower() == "off":
        return 0.0
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"watch.{key} must be a number, not {value!r}.")
    return number
