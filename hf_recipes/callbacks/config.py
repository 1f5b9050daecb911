"""Thresholds of the watchers, as written under `watch:` in a recipe. Imports neither torch nor transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hf_recipes.core.errors import UserError, nearest

_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def _key(default: Any, help: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True)
class WatchConfig:
    """What is watched and when an alarm is raised. Each field's `metadata["help"]` is its line in the key table."""

    non_finite: str = _key(
        "stop",
        "What a non-finite loss or gradient does, before it reaches the weights: stop the run, skip the update, off.",
        choices=("stop", "skip", "off"),
    )
    max_consecutive_skips: int = _key(10, "Updates skipped in a row after which the run stops all the same.", minimum=1)
    trainable: bool = _key(True, "Stop when nothing is trainable, or the first gradient is zero.")
    grad_norm: bool = _key(True, "Watch the gradient norm before clipping. Costs one pass over the gradients a step.")
    spike_sigma: float = _key(
        8.0, "Robust standard deviations of log(norm) from the run's own median that count as a spike.", minimum=1.0
    )
    grad_window: int = _key(128, "Healthy steps that the gradient norm's band is learned from.", minimum=16)
    overfit_patience: int = _key(
        3, "Evaluations in a row above the best, train loss falling, that count as overfitting; off or 0: not watched."
    )
    overfit_min_delta: float = _key(0.01, "Rise of the eval loss (nats) that is more than noise.")
    overfit_stop: bool = _key(False, "Stop the run when overfitting is seen, not only say so.")

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
