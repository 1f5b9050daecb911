"""Two real processes over gloo: one writes the marks, after both have written theirs, and both hear the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_helpers import read_losses

from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.checkpoints.manifest import read_manifest, read_verified
from hf_recipes.core.events import read_events

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent


def two_ranks(output, mode):
    environment = {
        **os.environ,
        "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": f"{HERE.parents[1]}:{HERE}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*command, str(HERE / "two_rank_train.py"), str(output), mode],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((output / f"rank{rank}-{mode}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    output = tmp_path_factory.mktemp("two-ranks")
    return output, two_ranks(output, "whole")


def test_c2_rank_0_marks_after_both_have_written(saved):
    output, seen = saved
    assert [rank["failed"] for rank in seen] == [None, None]
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
    for checkpoint in output.glob("checkpoint-*"):
        manifest = read_manifest(checkpoint)
        assert manifest.world_size == 2
        assert {"rng_state_0.pth", "rng_state_1.pth"} <= set(manifest.files)
        assert read_verified(checkpoint)["ok"]
    assert {event["rank"] for event in read_events(output) if event["kind"] == "verify"} == {0}


def test_c4_two_ranks_resume_where_they_stopped(saved):
    output, _ = saved
    unbroken = read_losses(output / "losses-whole.jsonl")
    content = (output / "checkpoint-4" / "rng_state_1.pth").read_bytes()
    (output / "checkpoint-4" / "rng_state_1.pth").write_bytes(content[:-50])
    assert last_good_checkpoint(output).path == output / "checkpoint-3"
    first, second = two_ranks(output, "resume")
    assert first == second
    assert first["resumed"].endswith("checkpoint-3")
    assert read_losses(output / "losses-resume.jsonl") == {4: unbroken[4]}


def test_c2_a_full_disk_on_rank_0_stops_both_ranks_alike(tmp_path):
    first, second = two_ranks(tmp_path, "no-room")
    assert first == second
    assert first["step"] == 2
    assert "checkpoint-2 could not be marked as complete" in first["failed"]
    assert last_good_checkpoint(tmp_path).path.name in ("checkpoint-1", "checkpoint-2")
    assert not (tmp_path / "checkpoint-2" / "verified.json").exists()
