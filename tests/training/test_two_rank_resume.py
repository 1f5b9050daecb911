"""Two real processes, and one, take up each other's runs: the same rows at every step, and the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from resumed_runs import NO_DROPOUT, numbers, recorded_batches, resume, train, write_recipe

from hf_recipes.core.events import read_events

pytestmark = [pytest.mark.slow, pytest.mark.trials]  # tests/strategies has one resume on two ranks in the suite
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def runs(four_bit_model_dir, tmp_path_factory):
    """Directory, what ranks 0 and 1 saw, the unbroken run on one rank, and what the launch printed."""
    directory = tmp_path_factory.mktemp("resumed")
    recipe = write_recipe(directory, four_bit_model_dir)
    with recorded_batches() as batches:
        one = train(recipe, directory / "one", *NO_DROPOUT, "--gradient_accumulation_steps", "2")
    done = subprocess.run(
        [sys.executable, str(HERE / "two_rank_resume.py"), str(directory)],
        env={
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (HERE.parents[1], HERE.parent, HERE))),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else ranks may look for the ones before the restart
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads((directory / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    return directory, seen, {"numbers": one, "batches": batches}, done.stderr


def by_step(batches, accumulation, first=0):
    """Optimizer step → the rows that met in it, in any order."""
    steps = range(len(batches) // accumulation)
    return {
        first + step + 1: sorted(row for batch in batches[step * accumulation :][:accumulation] for row in batch)
        for step in steps
    }


def both_ranks(seen, name, first=0):
    """The rows of both ranks by step."""
    mine, theirs = (by_step(rank[name]["batches"], 1, first) for rank in seen)
    return {step: sorted(mine[step] + theirs[step]) for step in mine}


def as_steps(values):
    return {int(step): tuple(pair) for step, pair in values.items()}


def assert_close(resumed, whole, first):
    assert sorted(resumed) == list(range(first, 11))
    for step, pair in resumed.items():
        assert pair == pytest.approx(whole[step], abs=1e-4), step


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_c4_two_ranks_resume_to_the_bit_with_dropout(method, runs):
    _, seen, _, _ = runs
    whole, resumed = (as_steps(seen[0][method][name]) for name in ("whole", "resumed"))
    assert sorted(resumed) == ([9, 10] if method == "qlora" else [5, 6, 7, 8, 9, 10])
    assert resumed == {step: whole[step] for step in resumed}


def test_an_epoch_meets_every_row_once_on_one_rank_and_on_two(runs):
    _, seen, one, _ = runs
    rows = by_step(one["batches"], 2)
    assert len({row for step in range(1, 7) for row in rows[step]}) == 48
    assert both_ranks(seen, "two") == rows


def test_c6_a_run_of_one_rank_goes_on_with_two(runs):
    directory, seen, one, _ = runs
    assert both_ranks(seen, "one by two", first=4) == {
        step: rows for step, rows in by_step(one["batches"], 2).items() if step > 4
    }
    assert_close(as_steps(seen[0]["one by two"]["numbers"]), one["numbers"], 5)
    assert json.loads((directory / "one-from-4" / "run.json").read_text())["global_batch_size"] == 8


def test_c6_a_run_of_two_ranks_goes_on_with_one(runs, caplog):
    directory, seen, _, _ = runs
    with recorded_batches() as batches, caplog.at_level("INFO", "hf_recipes"):
        resumed = resume(directory / "recipe.yaml", directory / "two", 4, *NO_DROPOUT)
    whole = both_ranks(seen, "two")
    assert by_step(batches, 2, first=4) == {step: rows for step, rows in whole.items() if step > 4}
    assert_close(resumed, as_steps(seen[0]["two"]["numbers"]), 5)
    assert "was written by 2 processes and is resumed by 1" in caplog.text
    assert "The global batch stays at the 8 rows that" in caplog.text
    assert "4 a device × 2 accumulated × 1 (the recipe's own numbers" in caplog.text


def test_an_elastic_restart_goes_on_by_itself_from_the_last_good_checkpoint(runs):
    directory, seen, _, text = runs
    begins = [event for event in read_events(directory / "elastic") if event["kind"] == "begin"]
    assert [event["resumed_from"] for event in begins if event["rank"] == 0] == [None, 4]
    assert numbers(directory / "elastic") == as_steps(seen[0]["lora"]["whole"])
    assert "TORCHELASTIC_RESTART_COUNT=1" in text
    assert json.loads((directory / "elastic" / "status.json").read_text())["code"] == 0
