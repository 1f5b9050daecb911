from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import CheckFailed, ErrorOfOneRank, UserError
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.environment import LAUNCHED_BY_US
from hf_recipes.training.output import choose_output, recorded_end


def recipe(**values):
    return Recipe("mine", values, frozenset(values))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_run(path):
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    return path


def test_a_new_run_is_named_after_recipe_and_time():
    path = choose_output(recipe())
    assert path.parent.name == "runs"
    assert path.name.startswith("mine-20")


def test_a_given_directory_is_taken_unless_it_holds_a_run(tmp_path):
    assert choose_output(recipe(output_dir="new")).name == "new"
    make_run(tmp_path / "old")
    with pytest.raises(UserError, match="'old' already holds a run: resume it"):
        choose_output(recipe(output_dir="old"))
    assert choose_output(recipe(output_dir="old", resume_from_checkpoint="last")).name == "old"


@pytest.mark.parametrize("name", ["data.json", "plan.json", "report.html", "curves.png"])
def test_files_of_ones_own_are_not_written_over(name, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"holds a {name} of no run"):
        choose_output(recipe(output_dir=str(tmp_path)))


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), Exception("No space left on device (os error 28)")]
)
def test_a_full_disk_is_one_sentence_whoever_says_it(error, tmp_path):
    with (
        pytest.raises(ErrorOfOneRank, match=r"is full: free some space.*resume_from_checkpoint last"),
        recorded_end(tmp_path),
    ):
        raise error


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json"])
def test_a_directory_that_holds_a_model_is_no_place_for_a_run(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=rf"holds a model \({name}\): name another"):
        choose_output(recipe(output_dir=str(tmp_path)))
    again = recipe(output_dir=str(tmp_path), resume_from_checkpoint="last")  # where another trainer put both
    assert choose_output(again) == tmp_path


def test_a_rank_takes_the_directory_that_its_launcher_chose(tmp_path, monkeypatch):
    """The launcher asked how the last run ended, and put its status away for the new one."""
    monkeypatch.setenv(LAUNCHED_BY_US, "1")
    assert choose_output(recipe(output_dir=str(make_run(tmp_path / "old")))) == tmp_path / "old"


def ended(path, code, last_step=0):
    make_run(path)
    (path / "status.json").write_text(json.dumps({"code": code, "sentence": "so", "last_step": last_step}))
    return path


def test_a_directory_whose_run_failed_its_checks_is_taken_again(tmp_path):
    ended(tmp_path / "failed", 1)
    assert choose_output(recipe(output_dir="failed")).name == "failed"


@pytest.mark.parametrize(
    ("name", "code", "last_step"), [("", 0, 0), ("", 1, 3), ("checkpoint-3", 1, 0), ("adapter", 1, 0), ("model", 1, 0)]
)
def test_what_was_trained_is_never_taken_again(name, code, last_step, tmp_path):
    (ended(tmp_path / "old", code, last_step) / name).mkdir(exist_ok=True)
    with pytest.raises(UserError, match="'old' already holds a run"):
        choose_output(recipe(output_dir="old"))


@pytest.mark.parametrize("text", ["", "[]", '{"code": 1}'])
def test_a_damaged_status_is_no_reason_to_take_a_directory(text, tmp_path):
    (make_run(tmp_path / "old") / "status.json").write_text(text)
    with pytest.raises(UserError, match="'old' already holds a run"):
        choose_output(recipe(output_dir="old"))


def test_last_without_a_directory_is_the_newest_run_of_the_recipe(tmp_path):
    import os

    for age, name in ((30, "mine-1"), (10, "mine-2"), (5, "other-3")):
        run = make_run(tmp_path / "runs" / name)
        os.utime(run / "run.json", (1e9 - age, 1e9 - age))
    assert choose_output(recipe(resume_from_checkpoint="last")).name == "mine-2"


def test_auto_takes_the_directory_or_the_newest_unfinished_run_or_a_new_one(tmp_path, caplog):
    caplog.set_level("INFO", "hf_recipes")
    auto = recipe(resume_from_checkpoint="auto")
    assert choose_output(auto).name.startswith("mine-20")
    assert "no unfinished run of 'mine' under runs/" in caplog.text
    make_run(tmp_path / "runs" / "mine-1")
    assert choose_output(auto).name == "mine-1"
    assert "going on with 'runs/mine-1', the newest unfinished run" in caplog.text
    make_run(tmp_path / "old")
    assert choose_output(recipe(output_dir="old", resume_from_checkpoint="auto")).name == "old"


def test_a_requeued_job_is_not_refused_its_own_directory(tmp_path, monkeypatch):
    make_run(tmp_path / "old")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert choose_output(recipe(output_dir="old")).name == "old"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    with pytest.raises(UserError, match="'old' already holds a run: resume it"):
        choose_output(recipe(output_dir="old"))


def test_a_checkpoint_to_resume_from_names_its_run():
    assert choose_output(recipe(resume_from_checkpoint="runs/x/checkpoint-3")).name == "x"


def test_nothing_to_resume_is_said():
    with pytest.raises(UserError, match="no run of 'mine' under runs/"):
        choose_output(recipe(resume_from_checkpoint="last"))


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UserError("wrong key"), 2, "wrong key"),
        (CheckFailed("a NaN"), 1, "a NaN"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("boom"), 1, "crashed with RuntimeError: boom"),
    ],
)
def test_however_a_run_ends_it_is_written_down(error, code, sentence, tmp_path):
    with pytest.raises(type(error)), recorded_end(tmp_path) as facts:
        facts["last_step"] = 7
        raise error
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["code"], status["sentence"], status["last_step"]) == (code, sentence, 7)


def test_a_good_end_is_written_down_too(tmp_path):
    with recorded_end(tmp_path) as facts:
        facts["sentence"] = "finished 3 steps"
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["code"], status["sentence"]) == (0, "finished 3 steps")
