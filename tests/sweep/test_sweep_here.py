"""Sweeps whose trials train in this process: what is left beside them, and what a second call makes of it."""

from __future__ import annotations

import json
import signal

import pytest
from sweep_places import make_place, trial_here

from hf_recipes.cli.main import main
from hf_recipes.recipe.resolve import load_recipe

BEST, WORST = "lr0.03", "lr1e-05"


@pytest.fixture
def place(tiny_model_dir, tmp_path, monkeypatch):
    make_place(tiny_model_dir, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hf_recipes.sweep.one_trial.run_child", trial_here)
    return tmp_path


def sweep(*arguments):
    return main(["sweep", "--config", "recipe.yaml", *arguments])


def read(place):
    return json.loads((place / "sweeps/recipe/sweep.json").read_text())


def test_two_trials_side_by_side_and_then_no_other_recipe(place, capsys):
    assert sweep("--lr", "1e-5,3e-2") == 0
    told = capsys.readouterr().out
    assert [line.split()[:2] for line in told.splitlines()[2:4]] == [["*", "0.03"], ["1e-05", "4"]]
    assert "The best lr, 0.03, is the highest that was tried: higher ones may be better." in told
    assert "One seed each" in told
    book = read(place)
    directory = place / "sweeps/recipe"
    assert book["best"] == BEST and [trial["figures"]["state"] for trial in book["trials"]] == ["ok", "ok"]
    # Rank 16 on q_proj (32 → 32) and v_proj (32 → 16) of two layers: 2 · 16 · (64 + 48).
    assert book["trials"][1]["figures"]["trained"] == 3584
    assert (directory / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert f'href="trials/{BEST}/report.html"' in (directory / "sweep.html").read_text()
    assert (directory / "trials" / BEST / "adapter/adapter_config.json").is_file()

    best = load_recipe(str(directory / "best.yaml"))
    assert best.values == load_recipe("recipe.yaml", ["--learning_rate", "3e-2"]).values | {
        "datasets": [{"path": str(place / "rows.jsonl")}]
    }

    assert sweep("--lr", "1e-5,2e-5", "--max_steps", "6") == 2
    assert "were made with other keys (max_steps 4 → 6)" in capsys.readouterr().err
    assert read(place) == book


@pytest.mark.trials
def test_other_values_in_the_same_directory_are_added_to_those_that_are_there(place, capsys):
    assert sweep("--lr", "1e-5,3e-2") == 0
    directory = place / "sweeps/recipe/trials"
    before = {name: (directory / name / "run.json").stat().st_mtime for name in (BEST, WORST)}
    capsys.readouterr()
    assert sweep("--lr", "1e-5,1e-2") == 0  # one of them is there already
    assert len(read(place)["trials"]) == 3
    assert before == {name: (directory / name / "run.json").stat().st_mtime for name in before}
    told = capsys.readouterr().err
    assert "2 trials in sweeps/recipe (1 ok, 1 waiting), 1 to run." in told
    assert "Trials of other calls that are in the table too: 1." in told


@pytest.mark.trials
def test_a_watcher_that_stops_a_trial_prunes_it_and_the_sweep_goes_on(place, capsys):
    # LoRA's A has no gradient at first, since B is zero: without an epsilon Adam divides 0 by 0.
    assert sweep("--adam_epsilon", "0,1e-8") == 0
    states = {trial["name"]: trial["figures"] for trial in read(place)["trials"]}
    assert states["adam_epsilon1e-08"]["state"] == "ok"
    assert states["adam_epsilon0"]["state"] == "pruned"
    assert "adam_epsilon0: pruned: by a watcher: " in capsys.readouterr().out


@pytest.mark.trials
def test_what_the_machine_cannot_do_is_a_row_of_the_table(place, capsys, monkeypatch):
    from hf_recipes.models.precision import Hardware

    monkeypatch.setattr("hf_recipes.models.precision.detect_hardware", lambda: Hardware("cpu", False))
    assert sweep("--precision", "fp32,bf16,fp16") == 0
    states = {trial["name"]: trial["figures"]["state"] for trial in read(place)["trials"]}
    assert states == {"precision-fp32": "ok", "precision-bf16": "left out", "precision-fp16": "left out"}
    assert "no bf16 arithmetic" in capsys.readouterr().out


@pytest.mark.trials
def test_a_range_test_suggests_a_rate_and_leaves_no_model(place, capsys):
    assert sweep("--lr_range", "1e-5..10", "--steps", "60", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    directory = place / "sweeps/recipe-lr_range"
    assert sorted(path.name for path in directory.iterdir()) == ["lr_range.json", "lr_range.png"]
    assert found["rates"][0] == 1e-5 and found["rates"][1] / found["rates"][0] == pytest.approx(10 ** (6 / 59))
    # The rate of a tiny random model: below it next to nothing is learned in 60 steps, above it the loss swings.
    assert 1e-3 < found["suggestion"]["learning_rate"] < 1
    assert min(found["losses"]) < found["losses"][0] - 0.1


def test_two_sweeps_at_once_do_not_share_a_directory(place, capsys):
    fcntl = pytest.importorskip("fcntl")
    directory = place / "sweeps/recipe"
    directory.mkdir(parents=True)
    with open(directory / ".writer.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sweep("--lr", "1e-5,1e-4") == 2
    told = capsys.readouterr().err
    assert "sweeps/recipe" in told and told.count("\n") == 1
    assert [path.name for path in directory.iterdir()] == [".writer.lock"]


def test_a_stop_between_two_trials_begins_no_other(place, capsys, monkeypatch):
    begun = []
    monkeypatch.setattr(
        "hf_recipes.sweep.one_trial.run_child", lambda arguments, log, listener, look: begun.append(log) or 1
    )
    monkeypatch.setattr("hf_recipes.sweep.run.tell_time", lambda seconds, left: signal.raise_signal(signal.SIGTERM))
    assert sweep("--lr", "1e-5,1e-4") == 75
    assert len(begun) == 1
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "There is nothing to compare"),
        (["--lr", "1e-5"], "There is nothing to compare"),
        (["--lr", "1e-5,1e-4", "--search", "best"], "none of grid, random, optuna"),
        (["--lr", "1e-5,1e-4", "--search", "random"], "say how many points to draw"),
        (["--lr", "1e-5,1e-4", "--trials", "3"], "a grid runs all its trials"),
        (["--lr", "1e-5..1e-4", "--search", "random", "--trials", "0"], "'0' is not a number of 1 or more"),
        (["--lr", "1e-5,1e-4", "--prune", "hyperband"], "add --search optuna"),
        (["--lr", "1e-5,1e-4", "--prune", "mean"], "none of off, median, hyperband"),
        (["--lr", "1e-5,1e-4", "--metric", "exact"], "add --evaluate"),
        (["--lr", "1e-5,1e-4", "--evaluate"], "has no 'evaluation'"),
        (["--lr", "1e-5,1e-4", "--eval_share", "0"], "measured on eval rows, and the recipe has none"),
        (["--lr", "1e-5,200"], "lr 200: --learning_rate: 'learning_rate' is 200.0: give a value from 0 to 100"),
        (["--watch.spike_sgima", "4,8"], "did you mean 'spike_sigma'"),
        (["--batch", "4,5", "--num_processes", "2"], "5 rows do not divide among 2 ranks"),
        (["--lr", "1e-5,1e-4", "--output_dir", "."], "holds something else"),
        (["--lr", "1e-5,1e-4", "--steps", "5"], "--steps is of the range test"),
        (["--seach", "grid", "--lr", "1e-5,1e-4"], "did you mean 'search'"),
        (
            ["--lr", "1e-6..1e-3", "--search", "random", "--trials", "1000000"],
            "1,000,000 are more than anybody",
        ),
        (["--max_length", "64,1", "--search", "optuna", "--trials", "2"], "max_length 1: --max_length: "),
        (["--datasets.0.path", "rows.jsonl,gone.jsonl"], "gone.jsonl"),
        (["--strategy", "single,tp"], "strategy tp: "),
        (["--strategy", "ddp,zero2", "--config_file", "recipe.yaml"], "is decided by --config_file"),
        (["--lr", "1e-5,1e-4", "--config_file", "gone.yaml"], "does not exist"),
        (["--lr", "1e-5,1e-4", "--num_processes", "0"], "is not a number of processes"),
        (["--lr", "1e-5,1e-4", "--output_dir", "rows.jsonl/x"], "cannot be written to"),
        (["--lr_range", "1e-5..1", "--evaluate"], "--evaluate is of a sweep"),
        (["--lr_range", "1e-5..1", "--lr", "1e-5"], "is what --lr_range looks for"),
        (["--lr_range", "1e-5..1", "--rank", "4,8"], "--lr_range is one run"),
        (["--lr_range", "1..1e-5"], "is no range of learning rates"),
        (["--lr_range", "1e-5..1", "--steps", "5"], "'5' is not a number of 20 or more"),
    ],
)
def test_wrong_use_is_one_sentence_and_makes_nothing(arguments, sentence, place, capsys):
    before = sorted(place.iterdir())
    assert sweep(*arguments) == 2
    told = capsys.readouterr().err
    assert sentence in told and told.count("\n") == 1
    assert sorted(place.iterdir()) == before
