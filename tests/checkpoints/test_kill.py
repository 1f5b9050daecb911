"""SIGKILL in the middle of saves, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_helpers import read_losses

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent


def test_c1_after_kills_in_mid_save_the_last_good_one_loads_and_the_run_ends_as_if_never_stopped(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "kill_trials.py"), str(tmp_path), "6", "1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["statuses"] == [0, 0], done.stderr[-3000:]
    assert result["last"] == 40
    assert len(result["trials"]) == 6
    assert any(trial["skipped"] for trial in result["trials"])  # at least one kill really fell into a save
    killed, unbroken = read_losses(tmp_path / "killed.jsonl"), read_losses(tmp_path / "unbroken.jsonl")
    assert sorted(killed) == list(range(1, 41))
    assert killed == unbroken
