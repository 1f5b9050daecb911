"""The page of all keys is the table, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_recipes.recipe.key_page import render_keys
from hf_recipes.recipe.key_table import STORED_TABLE, installed_versions, load_key_table
from hf_recipes.recipe.validate import REFUSED_KEYS, UNSUPPORTED_VALUES

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"


def test_the_page_is_made_from_the_table():
    """Make it anew: ``python -m hf_recipes.recipe.key_page > docs/keys.md``."""
    if json.loads(STORED_TABLE.read_text(encoding="utf-8"))["versions"] != installed_versions():
        pytest.skip("the page is of the versions that the stored table was made with")
    assert PAGE.read_text(encoding="utf-8") == render_keys(load_key_table())


def test_a_default_that_depends_on_the_method_names_the_methods():
    (row,) = [line for line in render_keys(load_key_table()).splitlines() if line.startswith("| `learning_rate`")]
    assert "`2e-05` (full, partial); `0.0002` (lora, dora, qlora, adapter); `0.003` (prefix, ia3)" in row


def rows_of(name: str) -> list[str]:
    return [line for line in render_keys(load_key_table()).splitlines() if line.startswith(f"| `{name}` |")]


@pytest.mark.parametrize("name", REFUSED_KEYS)
def test_a_key_that_is_refused_stands_with_what_to_write_instead(name):
    """Once, in the last table, and not among those that can be written."""
    (row,) = rows_of(name)
    assert row.count(" | ") == 1, row


@pytest.mark.parametrize("name", UNSUPPORTED_VALUES)
def test_values_that_are_refused_are_told(name):
    (row,) = rows_of(name)
    assert "Refused here with any value but `" in row


@pytest.mark.parametrize(
    ("name", "word"),
    [("resume_from_checkpoint", "`auto`"), ("max_length", "dropped"), ("dtype", "autocast")],
)
def test_a_key_that_does_something_else_here_is_told_in_our_words(name, word):
    (row,) = rows_of(name)
    assert word in row
