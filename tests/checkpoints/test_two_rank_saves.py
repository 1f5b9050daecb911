"""Two real processes over gloo: one writes the marks, after both have written theirs, and both hear the result."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_helpers import read_losses
from two_ranks import run_two_ranks

from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.checkpoints.manifest import read_manifest, read_verified
from hf_recipes.core.events import read_events

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent


def two_ranks(output, mode):
    return run_two_ranks(HERE / "two_rank_train.py", output, mode)


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
        assert manifest.extra["batch"]["global_batch_size"] == 8
        assert read_verified(checkpoint)["level"] == "reload"
        assert read_verified(checkpoint)["ok"]
    assert {event["rank"] for event in read_events(output) if event["kind"] == "verify"} == {0}


def test_a_second_run_is_refused_on_both_ranks(saved):
    first, second = (rank["refused"] for rank in saved[1])
    assert first == second
    assert "is being written by another run" in first


@pytest.mark.trials  # tests/training/test_two_rank_resume.py has it with recipes
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


@pytest.mark.trials
def test_c2_a_full_disk_on_rank_0_stops_both_ranks_alike(tmp_path):
    first, second = two_ranks(tmp_path, "no-room")
    assert first == second
    assert first["step"] == 3  # known before the next save, on both
    assert not (tmp_path / "checkpoint-3").exists()
    assert "checkpoint-2 could not be marked as complete" in first["failed"]
    assert last_good_checkpoint(tmp_path).path.name in ("checkpoint-1", "checkpoint-2")
    assert not (tmp_path / "checkpoint-2" / "verified.json").exists()
