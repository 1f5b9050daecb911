"""`RankWatch` on two real processes over gloo, some of which die; and its parts alone."""

from __future__ import annotations

import gc
import json
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from torch import nn
from two_ranks import run_two_ranks, under_torchrun
from watch_helpers import PoisonModel, logged, make_trainer, rows, weights

from hf_recipes.callbacks.gradients import _GATES
from hf_recipes.callbacks.rank_watch import (
    RankWatch,
    _sampled_rows,
    checksums,
    describe_missing_ranks,
    is_replicated,
    long_phase,
)
from hf_recipes.callbacks.sigterm_watch import SigtermWatch
from hf_recipes.core.events import read_events

SCRIPT = Path(__file__).with_name("rank_two_ranks.py")


def told(directory):
    return [event for event in read_events(directory) if event.get("detector") == "ranks"]


# --- one process


@pytest.mark.trials
def test_one_process_does_nothing_and_costs_nothing(tmp_path):
    runs = []
    for callbacks in ([], [RankWatch()]):
        trainer = make_trainer(tmp_path, callbacks, eval_strategy="steps", eval_steps=2)
        trainer.train()
        trainer.train()  # a second run starts afresh
        runs.append((logged(trainer, "loss"), weights(trainer.model).tolist()))
    assert runs[0] == runs[1]
    gc.collect()
    assert not trainer.model._forward_hooks
    assert trainer.model not in _GATES
    assert "rank-watch" not in [thread.name for thread in threading.enumerate()]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert told(tmp_path) == []
    assert describe_missing_ranks() is None
    with long_phase("generating"):
        pass


def test_state_is_json_and_makes_an_equal_callback(tmp_path):
    watch = RankWatch(late_seconds=5, checksum_every=7)
    make_trainer(tmp_path, [watch]).train()
    watch.detector.in_series.add("parameters")
    again = RankWatch.from_state(json.loads(json.dumps(watch.state(), allow_nan=False)))
    assert again.state() == watch.state()
    assert (again.late_seconds, again.checksum_every) == (5, 7)


# --- checksums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 1001])
def test_a_checksum_sees_the_last_bit_of_any_value(dtype, size):
    model = nn.Module()
    model.first = nn.Parameter(torch.randn(size).to(dtype))
    model.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
    before = checksums(model)
    assert len(before) == 1
    assert checksums(model) == before
    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[model.first.element_size()]
    for place in {0, size // 2, size - 1}:
        model.first.data.view(raw)[place] ^= 1
        assert checksums(model) != before
        model.first.data.view(raw)[place] ^= 1
    assert checksums(model) == before


def test_a_checksum_is_that_of_the_values_wherever_they_lie():
    flat = torch.randn(101)
    alone = nn.Module()
    for start in range(4):  # views into one buffer, as flat optimizers make them, on odd places too
        for size in (64, 33):
            view = nn.Module()
            view.part = nn.Parameter(torch.zeros(size))
            view.part.data = flat[start : start + size]
            alone.part = nn.Parameter(flat[start : start + size].clone())
            assert checksums(view) == checksums(alone)


def test_parameters_that_ranks_hold_in_parts_are_not_compared():
    model = PoisonModel()
    assert is_replicated(model)
    model.head.weight.ds_id = 3  # as ZeRO-3 marks them
    assert not is_replicated(model)
    model.head.weight.requires_grad_(False)
    assert is_replicated(model)


# --- the data's content


def test_rows_are_compared_by_content_without_transforms():
    data = Dataset.from_dict({"input_ids": [[row, row + 1] for row in range(100)]})
    drawn = []
    changing = data.with_transform(lambda batch: drawn.append(1) or batch)
    assert _sampled_rows(changing) == _sampled_rows(data) == _sampled_rows(data.select(range(100)))
    assert drawn == []
    assert _sampled_rows(data.shuffle(seed=1)) != _sampled_rows(data)
    assert _sampled_rows(data.select(range(99))) != _sampled_rows(data)
    assert _sampled_rows(rows(4)) is None  # reading may cost, or draw random numbers


# --- SIGTERM


@pytest.fixture
def handled():
    """Calls in order; SIGTERM's handler is put back."""
    calls = []
    before = signal.signal(signal.SIGTERM, lambda *_: calls.append("previous"))
    yield calls
    signal.signal(signal.SIGTERM, before)
    signal.set_wakeup_fd(-1)


def test_sigterm_is_looked_at_then_handed_on_and_wakes_the_thread(handled):
    sigterm = SigtermWatch(lambda: handled.append("look"))
    sigterm.set()
    signal.raise_signal(signal.SIGTERM)
    assert handled == ["look", "previous"]
    assert sigterm.wait(1) == "sigterm"
    sigterm.unset()
    assert sigterm.wait(1) == "stop"
    signal.raise_signal(signal.SIGTERM)
    assert handled == ["look", "previous", "previous"]


def test_whoever_takes_the_signal_later_keeps_it(handled):
    sigterm = SigtermWatch(lambda: handled.append("look"))
    sigterm.set()
    below = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *arguments: (handled.append("later"), below(*arguments)))
    sigterm.unset()
    signal.raise_signal(signal.SIGTERM)
    assert handled == ["later", "previous"]


# --- two ranks that live


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rank-watch")
    seen = run_two_ranks(SCRIPT, directory)
    return SimpleNamespace(directory=directory, seen=lambda name: (seen[0][name], seen[1][name]))


def only(ranks, name, *kinds):
    found = told(ranks.directory / name)
    assert [event.get("verdict") for event in found] == list(kinds)
    return found


@pytest.mark.slow
@pytest.mark.trials
def test_watching_changes_no_number_and_leaves_nothing_behind(ranks):
    only(ranks, "healthy")
    for healthy, unwatched in zip(ranks.seen("healthy"), ranks.seen("unwatched"), strict=True):
        assert healthy["weights"] == unwatched["weights"]
        assert healthy["losses"] == unwatched["losses"]
        assert (healthy["hooks"], healthy["threads"], healthy["sigterm"]) == (0, [], True)


@pytest.mark.slow
@pytest.mark.trials
def test_another_seed_is_told_before_the_first_step(ranks):
    (found,) = only(ranks, "seed", "start")
    assert (found["step"], found["what"], found["by_rank"]) == (0, "seed", [0, 1])


@pytest.mark.slow
@pytest.mark.trials
def test_unequal_data_are_told_before_the_first_step(ranks):
    found = only(ranks, "rows", "start", "start")
    assert [(each["what"], each["by_rank"]) for each in found] == [("rows", [256, 248]), ("batches", [128, 124])]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), [("nudged", 4), ("nudged at the end", 7), ("resumed", 2)])
def test_nudged_weights_are_told_at_the_next_checksum_once(name, step, ranks):
    (found,) = only(ranks, name, "parameters")
    assert found["step"] == step  # nudged after steps 3, 6 (in the 7th) and 2
    assert "the first head.weight" in found["message"]
    assert found["rank"] == 0


@pytest.mark.slow
@pytest.mark.trials
def test_a_series_goes_on_after_a_resume(ranks):
    assert [seen["in_series"] for seen in ranks.seen("resumed")] == [["parameters"]] * 2


@pytest.mark.slow
@pytest.mark.trials
def test_a_gradient_changed_on_one_rank_is_told_in_that_step(ranks):
    gradient, _ = only(ranks, "own gradient", "gradient", "parameters")
    assert gradient["step"] == 5
    assert gradient["by_rank"][1] == pytest.approx(2 * gradient["by_rank"][0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["late", "late in forward"])
def test_a_straggler_is_named_with_the_line_it_stands_in(name, ranks):
    late, *rest = told(ranks.directory / name)
    assert late["verdict"] == "late"
    assert [each["verdict"] for each in rest] in ([], ["moving"])  # the run may end before the next look
    assert (late["ranks"], late["step"]) == ([1], 11 if name == "late" else 10)
    assert 3 <= late["idle_seconds"] < 5.5
    assert "rank_two_ranks.py:" in late["last_seen"]
    assert ("waiting for data, in __getitem__" in late["last_seen"]) == (name == "late")
    assert "backward of micro-batch 2" in late["others_at"]


@pytest.mark.slow
@pytest.mark.trials
def test_a_slow_rank_is_named_once(ranks):
    (found,) = only(ranks, "slow", "slow")
    assert (found["ranks"], found["cause"]) == ([1], "the forward pass")
    assert 0.25 <= found["seconds_a_step"] < 0.6


# --- ranks that die


def run_to_the_end(directory, name):
    """Run one deadly scenario under torchrun; all that was told, and the launcher's exit code."""
    done = under_torchrun(SCRIPT, directory, name)
    return told(directory), done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "missing", "error"),
    [
        ("rank 1 killed", 1, None),
        pytest.param("rank 0 killed", 0, None, marks=pytest.mark.trials),
        pytest.param("rank 1 killed in a wait", 1, None, marks=pytest.mark.trials),
        pytest.param("rank 1 failed", 1, "RuntimeError: the disk of rank 1 is full", marks=pytest.mark.trials),
        pytest.param("told by the script", 1, None, marks=pytest.mark.trials),
    ],
)
def test_a_rank_that_dies_is_named_by_the_one_that_lives(name, missing, error, tmp_path):
    (found,), code = run_to_the_end(tmp_path, name)
    assert code != 0
    assert (found["kind"], found["verdict"], found["ranks"]) == ("alarm", "gone", [missing])
    assert found["rank"] == 1 - missing
    assert found["error"] == error
    assert found["step"] == 5  # it died at the beginning of step 5
    if name == "told by the script":
        assert (tmp_path / "told.txt").read_text() == found["message"]


@pytest.mark.slow
@pytest.mark.trials
def test_ranks_that_fail_alike_blame_nobody(tmp_path):
    assert run_to_the_end(tmp_path, "both failed")[0] == []


@pytest.mark.slow
@pytest.mark.trials
def test_a_rank_whose_data_end_early_is_told_while_the_other_waits(tmp_path):
    found, _ = run_to_the_end(tmp_path, "ended early")
    (early,) = [event for event in found if event["verdict"] == "ended_early"]
    assert (early["ranks"], early["step"], early["last_step"]) == ([1], 9, 8)


@pytest.mark.slow
@pytest.mark.trials
def test_a_run_that_is_terminated_ends_soon_and_has_no_missing_ranks(tmp_path):
    began = time.monotonic()
    found, _ = run_to_the_end(tmp_path, "terminated in a collective")
    assert [event["verdict"] for event in found] == ["late"]  # the hang itself
    assert time.monotonic() - began < 120
