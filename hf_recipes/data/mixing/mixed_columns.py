"""Columns of datasets that are mixed: the same names and types everywhere, and one that says where a row is from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hf_recipes.core.errors import UserError

SOURCE = "source"


def check_features(names: Sequence[str], features: Sequence[Mapping[str, Any]]) -> None:
    """Raise `UserError` where the datasets called `names` differ in the names or types of their columns."""
    for name, others in zip(names, features, strict=True):
        check_columns(names[0], features[0], name, others)
        for column, kind in features[0].items():
            if others.get(column, kind) != kind:
                raise UserError(
                    f"Column '{column}' is {kind} in '{names[0]}' and {others[column]} in '{name}': bring both to one "
                    "type with cast_column."
                )


def check_columns(first: str, columns: Collection[str], other: str, other_columns: Collection[str]) -> None:
    """Raise `UserError` where two datasets have other columns, but for ``source``."""
    mine, theirs = sorted(set(columns) - {SOURCE}), sorted(set(other_columns) - {SOURCE})
    if mine != theirs:
        raise UserError(f"'{first}' has the columns {mine} and '{other}' {theirs}: bring all to the same columns.")
