from __future__ import annotations

import json
import logging
import os

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.requeue import (
    check_same_recipe,
    end_if_finished,
    is_finished,
    newest_run,
    restart_reason,
    resume_request,
    tell_request,
)

REQUEUED = {"SLURM_RESTART_COUNT": "1"}


def recipe(**values):
    return Recipe("mine", values, frozenset(values))


def make_run(path, *, code=None, name="mine", result=True, **keys):
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"name": name, "recipe": keys}))
    if code is not None:
        (path / "status.json").write_text(json.dumps({"code": code, "sentence": "finished 9 steps"}))
    if result:
        (path / "adapter").mkdir()
        (path / "adapter" / "adapter_config.json").write_text("{}")
    return path


@pytest.mark.parametrize(
    ("value", "request_"),
    [
        ("last", "last"),
        (True, "last"),
        ("true", "last"),
        ("auto", "auto"),
        ("runs/x/checkpoint-3", "runs/x/checkpoint-3"),
    ],
)
@pytest.mark.parametrize("environment", [{}, REQUEUED])
def test_what_the_recipe_says_counts(value, request_, environment):
    assert resume_request(recipe(resume_from_checkpoint=value), environment) == request_


@pytest.mark.parametrize(
    ("environment", "request_"),
    [
        ({}, None),
        ({"SLURM_RESTART_COUNT": "0", "TORCHELASTIC_RESTART_COUNT": "0"}, None),
        ({"SLURM_RESTART_COUNT": ""}, None),
        (REQUEUED, "auto"),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, "auto"),
    ],
)
def test_a_restarted_job_goes_on_by_itself(environment, request_):
    assert resume_request(recipe(), environment) == request_


@pytest.mark.parametrize("value", [None, False, "off"])
def test_a_restarted_job_whose_recipe_says_no_starts(value):
    assert resume_request(recipe(resume_from_checkpoint=value), REQUEUED) is None


def test_why_a_job_goes_on_is_said(caplog):
    caplog.set_level(logging.INFO, "hf_recipes")
    assert restart_reason(REQUEUED) == "the job was requeued (SLURM_RESTART_COUNT=1)"
    tell_request(recipe(), "auto", REQUEUED)
    assert "Since the job was requeued (SLURM_RESTART_COUNT=1), this goes on as with" in caplog.text


def test_a_launcher_whose_restart_would_fail_is_warned_of_at_the_first_start(caplog):
    launcher = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for harmless in ({}, {**launcher, "TORCHELASTIC_MAX_RESTARTS": "0"}, {"TORCHELASTIC_MAX_RESTARTS": "3"}):
        tell_request(recipe(), None, harmless)
    assert not caplog.records
    tell_request(recipe(), None, launcher)
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in caplog.text


@pytest.mark.parametrize(
    ("code", "result", "finished"), [(0, True, True), (0, False, False), (75, True, False), (None, True, False)]
)
def test_a_run_is_finished_when_it_ended_well_and_has_its_result(code, result, finished, tmp_path):
    assert is_finished(make_run(tmp_path / "run", code=code, result=result)) is finished


def test_a_finished_run_ends_auto_with_code_0(tmp_path):
    run = make_run(tmp_path / "run", code=0, max_steps=9)
    with pytest.raises(UserError, match=r"is finished \(finished 9 steps\), nothing is left to do") as done:
        end_if_finished(run, recipe(max_steps=9))
    assert done.value.exit_code == 0
    assert UserError.exit_code == 2
    end_if_finished(run, recipe(max_steps=12))  # a longer one goes on
    end_if_finished(make_run(tmp_path / "stopped", code=1, max_steps=9), recipe(max_steps=9))
    end_if_finished(tmp_path / "nothing", recipe())


def test_auto_leaves_the_run_of_another_recipe_alone(tmp_path):
    with pytest.raises(UserError, match="holds a run of 'other', not of 'mine': name another"):
        check_same_recipe(make_run(tmp_path / "run", name="other", code=0), recipe())
    check_same_recipe(make_run(tmp_path / "own"), recipe())
    check_same_recipe(tmp_path / "nothing", recipe())


def test_the_newest_run_is_of_this_recipe_and_for_auto_unfinished(tmp_path):
    runs = [("mine-1", 1, None), ("mine-2", 2, 75), ("mine-3", 3, 0), ("mine-too-4", 4, None)]
    for folder, age, code in runs:
        run = make_run(tmp_path / folder, code=code, name="mine-too" if "too" in folder else "mine")
        os.utime(run / "run.json", (1e9 + age, 1e9 + age))
    assert newest_run(tmp_path, "mine").name == "mine-3"
    assert newest_run(tmp_path, "mine", unfinished=True).name == "mine-2"
    assert newest_run(tmp_path, "none") is None
    assert newest_run(tmp_path / "absent", "mine") is None
