"""What users build on changes on purpose only."""

from __future__ import annotations

from pathlib import Path

import hf_recipes
from hf_recipes.cli.surface import render_surface

PAGE = Path(__file__).parents[2] / "docs" / "surface.md"


def test_every_name_has_its_place_in_the_reference():
    lines = PAGE.with_name("api.md").read_text(encoding="utf-8").splitlines()
    named = sorted(line for line in lines if line.startswith(":::"))
    assert named == sorted(f"::: hf_recipes.{module}.{name}" for name, module in hf_recipes._EXPORTS.items())


def test_what_a_verb_takes_by_hand_stands_there_too():
    """`doctor` takes its run or log from what argparse leaves over, and names it in its usage alone."""
    (row,) = [line for line in render_surface().splitlines() if line.startswith("| `doctor` |")]
    assert row.startswith("| `doctor` | `RUN_DIR`, `FILE`, `-`, `--quick`")


def test_the_public_surface_is_what_is_written_down():
    """A change is meant? ``python -m hf_recipes.cli.surface > docs/surface.md``, and a line in CHANGELOG.md."""
    assert PAGE.read_text(encoding="utf-8") == render_surface()
