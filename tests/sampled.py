"""A suite takes a few variants of a test that trains for seconds each; `.ci/full` takes them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def sampled(variants: Iterable[Any], keep: Sequence[Any]) -> list[Any]:
    """Variants for `pytest.mark.parametrize`, those that are not in `keep` marked as trials."""
    found = list(variants)
    assert set(map(repr, keep)) <= set(map(repr, found)), "what is kept is among the variants"
    return [each if each in keep else pytest.param(each, marks=pytest.mark.trials) for each in found]
