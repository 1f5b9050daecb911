"""From a recipe's keys to the guard, and from what the guard did to the end of the run."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import psutil
import pytest

from hf_recipes.checkpoints.preemption.guard import PreemptionGuard
from hf_recipes.core.errors import CheckFailed, Preempted, UserError
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.output import recorded_end
from hf_recipes.training.preempting import choose_deadline, raise_if_preempted, recipe_guard, started_at

NOW = 2_000_000_000.0


def fake_setup(tmp_path, **ours):
    """What `recipe_guard` reads of a `Setup`."""
    keys = {
        "time_limit": None,
        "preemption_command": None,
        "preemption_poll_seconds": 5.0,
        "preemption_grace_seconds": 25.0,
    }
    return SimpleNamespace(
        recipe=Recipe("test", {**keys, **ours}, frozenset()),
        ours=SimpleNamespace(**{**keys, **ours}),
        arguments=SimpleNamespace(enable_jit_checkpoint=True),
        run=SimpleNamespace(path=tmp_path),
    )


def test_the_earlier_of_time_limit_and_the_end_of_the_job_counts():
    slurm = {"SLURM_JOB_END_TIME": str(NOW + 600)}
    assert choose_deadline(None, {}, NOW) == (None, "the deadline")
    assert choose_deadline(None, slurm, NOW) == (NOW + 600, "the end of the Slurm job")
    end, reason = choose_deadline("1h", slurm, NOW)
    began = psutil.Process().create_time()
    assert (end, reason) == (began + 3600, "time_limit 1h")


def test_time_is_counted_from_the_start_of_the_command():
    own, parent = psutil.Process(), psutil.Process().parent()
    assert started_at({}) == own.create_time()
    assert started_at({"HF_RECIPES_LAUNCHED": str(parent.pid)}) == parent.create_time()
    assert started_at({"TORCHELASTIC_RUN_ID": "1"}) == parent.create_time()
    assert started_at({"HF_RECIPES_LAUNCHED": "999999999"}) <= time.time()


def test_the_trainers_own_checkpoint_at_sigterm_is_taken_over_and_that_is_told(tmp_path, caplog):
    caplog.set_level("INFO", logger="hf_recipes")
    setup = fake_setup(tmp_path)
    assert isinstance(recipe_guard(setup), PreemptionGuard)
    assert setup.arguments.enable_jit_checkpoint is False
    assert "enable_jit_checkpoint" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [("preemption_grace_seconds", 0.0), ("preemption_poll_seconds", float("nan")), ("time_limit", "soon")],
)
def test_what_is_no_length_of_time_is_refused_by_the_name_of_its_key(key, value, tmp_path):
    with pytest.raises(UserError, match=f"{key}: .* is no length of time"):
        recipe_guard(fake_setup(tmp_path, **{key: value}))


def stopped_trainer(tmp_path, reason):
    guard = PreemptionGuard()
    guard.preempted = reason
    return SimpleNamespace(
        callback_handler=SimpleNamespace(callbacks=[guard]),
        args=SimpleNamespace(output_dir=str(tmp_path)),
        state=SimpleNamespace(global_step=4),
    )


def test_a_run_that_nobody_stopped_goes_on_to_its_result(tmp_path):
    raise_if_preempted(stopped_trainer(tmp_path, None), verifies=True)


def test_a_stopped_run_ends_with_75_only_where_its_save_is_good(tmp_path):
    with pytest.raises(CheckFailed, match="stopped at step 4 by SIGTERM, but checkpoint-4 was not written whole"):
        raise_if_preempted(stopped_trainer(tmp_path, "SIGTERM"), verifies=True)
    checkpoint = tmp_path / "checkpoint-4"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text("{}")
    with pytest.raises(CheckFailed, match="was not written whole"):
        raise_if_preempted(stopped_trainer(tmp_path, "SIGTERM"), verifies=True)
    (checkpoint / "verified.json").write_text('{"ok": true}')
    with pytest.raises(Preempted, match=r"saved in checkpoint-4 \(verified\)"), recorded_end(tmp_path):
        raise_if_preempted(stopped_trainer(tmp_path, "SIGTERM"), verifies=True)
    assert json.loads((tmp_path / "status.json").read_text())["code"] == 75


def test_the_last_words_of_a_run_out_of_time_are_its_status(tmp_path):
    guard = recipe_guard(fake_setup(tmp_path))
    guard._at_expiry(75, "stopped")
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["code"], status["sentence"], status["pid"]) == (75, "stopped", os.getpid())
