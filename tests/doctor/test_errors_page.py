"""The page of known messages is the table, and no other."""

from __future__ import annotations

from pathlib import Path

from hf_recipes.doctor.log.error_index import render_index
from hf_recipes.doctor.log.signatures import SIGNATURES

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_the_page_is_made_from_the_table():
    """Make it anew: ``python -m hf_recipes.doctor.log.error_index > docs/errors.md``."""
    assert PAGE.read_text(encoding="utf-8") == render_index()


def test_every_message_is_on_it_once():
    page = render_index().splitlines()
    assert all(page.count(f"### {name}") == 1 for name in SIGNATURES)
