"""What an error says, short enough for a sentence, whatever it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hf_recipes
from hf_recipes.core.errors import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  Not a model.\nTraceback: and more\n"), "Not a model"),
        (ValueError(), "ValueError"),
        (NotImplementedError(" \n "), "NotImplementedError"),
        ("Killed.\r\nBye.", "Killed"),
        ("", "no reason given"),
    ],
)
def test_the_first_line_without_its_full_stop_or_else_the_kind(error, line):
    assert first_line(error) == line


def test_nowhere_else_is_the_first_line_taken_in_a_way_of_its_own():
    """``str(error).splitlines()[0]`` is an IndexError for an exception without words."""
    own_way = re.compile(r"str\(error\).{0,60}splitlines\(\).{0,40}\[0\]")
    package = Path(hf_recipes.__file__).parent
    assert not [file for file in package.rglob("*.py") if own_way.search(file.read_text(encoding="utf-8"))]
