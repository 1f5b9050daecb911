"""SIGKILL at any moment leaves nothing that looks finished, and the next merge cleans up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("samples", [3, pytest.param(10_000, marks=pytest.mark.trials)])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_merge_killed_at_any_moment_is_whole_or_not_there(samples, overwrite, tmp_path, adapter):
    script = Path(__file__).with_name("merge_kills.py")
    place = tmp_path / "place" / "out"
    place.parent.mkdir()
    command = [sys.executable, str(script), str(adapter), str(place), str(samples), *(["overwrite"] * overwrite)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = result["found"]
    assert len(found) == min(samples, result["moments"])
    assert all(trial["killed"] for trial in found)
    assert all(trial["again"] for trial in found), found
    states = {trial["state"] for trial in found}
    # Absent while an old output is on its way out, too: the next merge puts it back or replaces it.
    assert states <= {"absent", "whole", "old"}, found
    assert "old" in states if overwrite else "absent" in states
