"""What users build on changes on purpose only."""

from __future__ import annotations

from pathlib import Path

from hf_recipes.cli.surface import render_surface

PAGE = Path(__file__).parents[2] / "docs" / "surface.md"


def test_the_public_surface_is_what_is_written_down():
    """A change is meant? ``python -m hf_recipes.cli.surface > docs/surface.md``, and a line in CHANGELOG.md."""
    assert PAGE.read_text(encoding="utf-8") == render_surface()
