"""Two real processes over gloo: who writes the bad batch, and that both go back to the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from two_ranks import run_two_ranks
from watch_helpers import NAN_LOSS

from hf_recipes.callbacks.bad_batches import load_bad_batch
from hf_recipes.core.events import read_events

pytestmark = [pytest.mark.slow, pytest.mark.trials]
SCRIPT = Path(__file__).with_name("bad_two_ranks.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bad-two-ranks")
    seen = run_two_ranks(SCRIPT, directory)
    return SimpleNamespace(directory=directory, seen=lambda name: (seen[0][name], seen[1][name]))


def alarms(directory):
    return [event for event in read_events(directory) if event["kind"] == "alarm"]


def test_only_the_rank_that_had_the_bad_batch_writes_it(ranks):
    first, second = ranks.seen("loss on rank 1")
    assert first == second
    (alarm,) = alarms(ranks.directory / "loss on rank 1")
    assert alarm["files"] == ["bad_batches/step-2-rank1-micro1.json"]
    file = ranks.directory / "loss on rank 1" / alarm["files"][0]
    assert sorted(each.name for each in file.parent.iterdir()) == [file.name, file.with_suffix(".safetensors").name]
    (row,) = json.loads(file.read_text())["rows"]
    assert [each["index"] for each in row["dataset_rows"]] == [5]
    assert NAN_LOSS in load_bad_batch(file)["input_ids"]


def test_where_nobody_knows_the_rank_both_write_their_candidates(ranks):
    first, second = ranks.seen("gradient averaged")
    assert first == second
    (alarm,) = alarms(ranks.directory / "gradient averaged")
    assert (alarm["bad_rank"], alarm["micro_batch"]) == (None, 2)
    assert alarm["files"] == [f"bad_batches/step-2-rank{rank}-micro2.json" for rank in (0, 1)]
    rows = [json.loads((ranks.directory / "gradient averaged" / file).read_text())["rows"] for file in alarm["files"]]
    assert [row["dataset_rows"][0]["index"] for (row,) in rows] == [6, 7]


def test_both_ranks_together_write_no_more_than_a_run_may(ranks):
    first, second = ranks.seen("few files")
    assert first == second
    files = [alarm["files"] for alarm in alarms(ranks.directory / "few files")]
    # Two bad steps, each with a candidate on both ranks: of the three files allowed the last is rank 0's.
    assert files[1] == ["bad_batches/step-3-rank0-micro2.json"]
    assert len(files[0]) == 2
    messages = [alarm["message"] for alarm in alarms(ranks.directory / "few files")]
    assert "Not written" not in messages[0]
    assert "Not written: 1 more, for a run writes 3 at most" in messages[1]


def test_both_ranks_go_back_to_the_checkpoint_and_stay_equal(ranks):
    first, second = ranks.seen("restore")
    assert first == second
    weights = first["weights"]
    saved = load_file(ranks.directory / "restore" / "checkpoint-4" / "model.safetensors")
    expected = torch.cat([saved[name].flatten() for name in ("embedding.weight", "head.weight", "head.bias")])
    assert weights["5"] == weights["4"] == [str(value) for value in expected.tolist()]
    assert weights["6"] != weights["5"]
    assert set(first["optimizer_steps"]) == {5.0}  # of six
    assert first["rates"] == pytest.approx([1e-2 * share for share in (1, 5 / 6, 4 / 6, 3 / 6, 1 / 6, 1 / 12)])
    (alarm,) = alarms(ranks.directory / "restore")
    assert (alarm["decision"], alarm["restored_from"], alarm["bad_rank"]) == ("restore", "checkpoint-4", 1)


def test_a_checkpoint_that_one_rank_cannot_read_stops_both(ranks):
    for seen in ranks.seen("restore fails on rank 1"):
        assert seen["step"] == 5
        assert "Training stops, for it could not be put back: " in seen["tripped"]
        assert "not-here" in seen["tripped"]


def test_a_nan_in_one_ranks_part_of_a_sharded_weight_is_named_by_both(ranks):
    for seen in ranks.seen("sharded weights"):
        assert (seen["healthy"], seen["poisoned"]) == ([], ["head.weight"])
        assert "the model is sharded: use the policy 'stop'" in seen["refused"]


def test_weights_that_are_not_finite_on_one_rank_are_refused_on_both(ranks):
    for seen in ranks.seen("bad start"):
        assert "trainable weights are not finite already (1 tensor: head.bias)" in seen["refused"]
