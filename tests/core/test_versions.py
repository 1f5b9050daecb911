"""Versions read from folders' names are those that Python's own reader gives."""

from __future__ import annotations

import importlib.metadata
import sys

from hf_recipes.core.versions import installed_version, stack_versions


def test_every_package_of_the_stack_has_the_version_that_its_metadata_gives():
    found = stack_versions()
    assert {"torch", "transformers", "trl", "hf-recipes"} <= set(found)
    assert all(
        importlib.metadata.version(package) == version for package, version in found.items() if package != "python"
    )


def test_what_is_not_installed_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), "", *sys.path])
    assert installed_version("no-such-package") is None
    (tmp_path / "no_such_package_more-2.0.dist-info").mkdir()
    assert installed_version("no-such-package") is None
    (tmp_path / "no_such_package-1.0+cpu.dist-info").mkdir()
    assert installed_version("no-such-package") == "1.0+cpu"
