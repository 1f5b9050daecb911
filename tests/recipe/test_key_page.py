"""The page of all keys is the table, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_recipes.recipe.key_page import render_keys
from hf_recipes.recipe.key_table import STORED_TABLE, installed_versions, load_key_table

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"


def test_the_page_is_made_from_the_table():
    """Make it anew: ``python -m hf_recipes.recipe.key_page > docs/keys.md``."""
    if json.loads(STORED_TABLE.read_text(encoding="utf-8"))["versions"] != installed_versions():
        pytest.skip("the page is of the versions that the stored table was made with")
    assert PAGE.read_text(encoding="utf-8") == render_keys(load_key_table())


def test_a_default_that_depends_on_the_method_names_the_methods():
    (row,) = [line for line in render_keys(load_key_table()).splitlines() if line.startswith("| `learning_rate`")]
    assert "`2e-05` (full, partial); `0.0002` (lora, dora, qlora, adapter); `0.003` (prefix, ia3)" in row
