"""Two real processes over gloo: what one rank sees, both act upon."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from two_ranks import run_two_ranks

from hf_recipes.core.events import read_events

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("watch_two_ranks.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Both ranks' views of all scenarios: starting processes takes longer than the scenarios do."""
    directory = tmp_path_factory.mktemp("two-ranks")
    seen = run_two_ranks(SCRIPT, directory)
    return SimpleNamespace(directory=directory, seen=lambda name: (seen[0][name], seen[1][name]))


def alarms(directory):
    return [event for event in read_events(directory) if event["kind"] == "alarm"]


def test_t5_without_the_guard_a_nan_on_rank_1_ruins_both(ranks):
    for seen in ranks.seen("unguarded"):
        assert not seen["finite"]
        assert seen["step"] == 4
        assert "nan" not in str(seen["losses"]).lower()  # the log looks fine


@pytest.mark.parametrize(
    ("name", "what", "micro_batch", "bad_rank"),
    [
        ("loss, first micro-batch", "loss", 1, 1),
        ("loss alone, last micro-batch", "loss", 2, 1),
        ("gradient, first micro-batch", "gradient", 1, 1),
        ("gradient, last micro-batch", "gradient", 2, None),  # averaged over the ranks before anybody sees it
    ],
)
def test_t5_a_nan_on_rank_1_stops_both_at_the_same_step(name, what, micro_batch, bad_rank, ranks):
    first, second = ranks.seen(name)
    assert first == second  # weights, step, sentence
    assert first["finite"]
    assert first["step"] == 2
    assert set(first["optimizer_steps"]) == {1.0}
    (alarm,) = alarms(ranks.directory / name)
    assert (alarm["rank"], alarm["step"]) == (0, 2)
    assert (alarm["what"], alarm["micro_batch"], alarm["bad_rank"]) == (what, micro_batch, bad_rank)


def test_skip_goes_on_with_equal_weights(ranks):
    first, second = ranks.seen("skip")
    assert first == second
    assert (first["step"], first["finite"], first["tripped"]) == (4, True, None)
    assert set(first["optimizer_steps"]) == {3.0}


def test_watching_changes_no_number_on_two_ranks(ranks):
    for watched, unwatched in zip(ranks.seen("healthy"), ranks.seen("healthy unwatched"), strict=True):
        assert {**watched, "readings": []} == {**unwatched, "readings": []}
    assert alarms(ranks.directory / "healthy") == []


def test_both_ranks_read_the_same_of_a_step_and_its_loss_is_the_logged_one(ranks):
    first, second = ranks.seen("healthy")
    assert first["readings"] == second["readings"]
    assert [reading["loss"] for reading in first["readings"]] == pytest.approx(first["losses"], abs=1e-4)  # 4 decimals
    for share in first["readings"][1]["by_rank"]:  # two micro-batches of one row of six tokens
        assert (share["step"], share["micro_batches"], share["rows"]) == (2, 2, 2)
        assert (share["positions"], share["supervised_tokens"]) == (12, 12)


def test_gradients_sharded_by_fsdp2_are_measured_and_clipped_as_whole_ones(ranks):
    first, second = ranks.seen("sharded")
    assert first["norm"] == second["norm"]
    assert float(first["norm"]) == pytest.approx(first["expected"], rel=1e-6)
    assert first["bad"] is None
    assert float(first["difference"]) < 1e-7


def test_a_nan_in_one_ranks_shard_is_seen_by_both(ranks):
    for seen in ranks.seen("sharded and poisoned"):
        assert seen["norm"] == "nan"
        assert seen["bad"] == {"what": "gradient", "micro_batch": 1, "rank": None}
