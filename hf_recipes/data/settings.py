"""The recipe keys that, with the sources and the tokenizer, decide what `prepare_data` makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.data.check import check_bad_rows
from hf_recipes.data.clean.config import CleanConfig
from hf_recipes.data.masking.lengths import OVERLONG
from hf_recipes.data.mixing.mixture import check_share

# What decides how one row becomes samples; the others decide which samples are trained on.
_FOR_ENCODING = ("max_length", "assistant_only_loss", "mask_history", "overlong", "bad_rows")


@dataclass(frozen=True)
class DataSettings:
    """Every choice of a preparation; see `prepare_data` for what each means."""

    max_length: int | None = 1024
    eval_share: float = 0.1
    general_share: float = 0.15
    share_unit: str = "rows"
    max_repeats: int = 1
    assistant_only_loss: bool = True
    mask_history: bool = False
    overlong: str = "drop"
    bad_rows: str = "drop"
    clean: CleanConfig = field(default_factory=CleanConfig)
    seed: int = 42

    def __post_init__(self) -> None:
        check_bad_rows(self.bad_rows)
        check_share(self.general_share, self.share_unit)
        if self.overlong not in OVERLONG:
            raise UserError(f"overlong must be one of {', '.join(OVERLONG)}, not '{self.overlong}'.")
        if not 0 <= self.eval_share < 1:
            raise UserError(f"eval_share is the part held out, from 0 to below 1, not {self.eval_share}.")
        if self.max_length is not None and self.max_length < 2:
            raise UserError(f"max_length must be at least 2 tokens, not {self.max_length}.")
        if self.max_repeats < 1:
            raise UserError(f"max_repeats is how often a general row may be used, 1 or more, not {self.max_repeats}.")

    def for_encoding(self) -> dict[str, Any]:
        """The part that decides how a row becomes samples, for the cache key."""
        return {name: getattr(self, name) for name in _FOR_ENCODING} | {"clean": self.clean.for_rows()}


def as_settings(values: Mapping[str, Any]) -> DataSettings:
    """Settings from keyword arguments; ``clean`` may be what a recipe holds.

    Raises:
        UserError: an unknown name, or a value out of range.
    """
    known = [item.name for item in fields(DataSettings)]
    for name in values:
        if name not in known:
            raise UserError(f"'{name}' is no setting of the data{nearest(name, known)}; known are {', '.join(known)}.")
    clean = values.get("clean")
    if not isinstance(clean, CleanConfig):
        clean = CleanConfig.from_mapping(clean)
    return DataSettings(**{**values, "clean": clean})


_ARGUMENTS = {"cache_dir": "data_cache_dir", "num_proc": "dataset_num_proc"}


def data_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments for `prepare_data`, or for `stream_data` under ``streaming: true``, from a recipe's values
    (``max_length: null`` stays: no limit)."""
    settings = {item.name: recipe[item.name] for item in fields(DataSettings) if item.name in recipe}
    if recipe.get("streaming"):
        return settings
    return settings | {ours: recipe[key] for ours, key in _ARGUMENTS.items() if recipe.get(key) is not None}
