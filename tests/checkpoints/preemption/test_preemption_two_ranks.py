"""Two real processes over gloo, of which one is asked to stop: both stop at the same step, and nobody is missed."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_helpers import read_losses
from two_ranks import run_two_ranks

from hf_recipes.checkpoints.manifest import read_manifest, read_verified
from hf_recipes.core.events import read_events

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("preemption_two_ranks.py")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    directory = tmp_path_factory.mktemp("preempted")
    first, second = run_two_ranks(SCRIPT, directory)
    for name in first:
        assert {**first[name], "predictions": 0} == {**second[name], "predictions": 0}, name
    return directory, first


@pytest.mark.parametrize(
    ("name", "reason", "step"),
    [
        ("rank 1", "SIGTERM", 3),
        ("watch first", "SIGTERM", 3),
        ("different steps", "SIGTERM", 3),
        ("during a save", "SIGTERM", 4),
        ("in an evaluation", "SIGTERM", 4),
        ("only noticed", "SIGUSR1", 3),
    ],
)
def test_what_one_rank_is_asked_all_do_at_the_same_step(name, reason, step, seen):
    directory, ranks = seen
    assert ranks[name] == {
        "preempted": reason,
        "step": step,
        "failed": None,
        "predictions": ranks[name]["predictions"],
        "handler": True,
    }
    assert [path.name for path in (directory / name).glob("checkpoint-*")] == [f"checkpoint-{step}"]
    assert read_verified(directory / name / f"checkpoint-{step}")["ok"]
    assert read_manifest(directory / name / f"checkpoint-{step}").world_size == 2


def test_an_evaluation_is_broken_off_on_both(seen):
    assert seen[1]["in an evaluation"]["predictions"] == 1


def test_no_rank_is_called_gone_or_late(seen):
    for directory in seen[0].iterdir():
        assert [event for event in read_events(directory) if event["kind"] == "alarm"] == []


def test_c4_two_ranks_go_on_as_if_they_had_not_been_stopped(seen):
    directory, ranks = seen
    assert (ranks["resumed"]["preempted"], ranks["resumed"]["step"]) == (None, 8)
    assert read_losses(directory / "rank 1" / "losses.jsonl") == read_losses(directory / "unbroken" / "losses.jsonl")
