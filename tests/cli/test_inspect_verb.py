"""`hf-recipes inspect` from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hf_recipes.cli.inspect import _wants_color
from hf_recipes.cli.main import main


@pytest.fixture
def recipe(tiny_model_dir, tmp_path, monkeypatch):
    """Thirty rows and a recipe that names them."""
    monkeypatch.setenv("HF_RECIPES_CACHE", str(tmp_path / "cache"))
    rows = [{"instruction": f"How many pens {n}?", "output": f"{n} pens"} for n in range(30)]
    data = tmp_path / "orders.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    path = tmp_path / "my.yaml"
    path.write_text(
        f"model_name_or_path: {tiny_model_dir}\ndatasets:\n  - path: {data}\nper_device_train_batch_size: 4\n",
        encoding="utf-8",
    )
    return path


def spoil(recipe, rows=31):
    """Add so many rows without an answer."""
    data = recipe.with_name("orders.jsonl")
    faulty = [{"instruction": f"And {n}?", "output": ""} for n in range(rows)]
    data.write_text(data.read_text() + "".join(json.dumps(row) + "\n" for row in faulty), encoding="utf-8")


def test_everything_is_shown_and_the_verdict_last(recipe, capsys):
    assert main(["inspect", "--config", str(recipe), "--batches", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("« pens<|im_end|>»") + shown.count(" pens<|im_end|>»") >= 8
    assert "30 of 30 rows come back from tokens as they went in" in shown
    assert "27 of 27 conversations learn that end (100.0%)" in shown  # a tenth of thirty is held out
    assert shown.rstrip().splitlines()[-1].startswith(("nothing", "note"))


def test_fewer_batches_are_no_fewer_verdicts(recipe, smollm2_dir, capsys):
    """SmolLM2's template says something of its own before a conversation, as is noted."""
    notes = []
    for batches in ("0", "2"):
        keys = ["--model_name_or_path", str(smollm2_dir), "--batches", batches, "--json"]
        assert main(["inspect", "--config", str(recipe), *keys]) == 0
        notes.append(json.loads(capsys.readouterr().out)["verdicts"])
    assert notes[0] == notes[1]
    assert "no system turn" in str(notes[0])


def test_rows_to_evaluate_on_that_are_trained_on_are_told_already_here(recipe, capsys):
    with recipe.open("a", encoding="utf-8") as file:
        file.write(f"evaluation:\n  domain: {recipe.with_name('orders.jsonl')}\n  scores: [exact_match]\n")
    assert main(["inspect", "--config", str(recipe), "--batches", "0"]) == 0
    assert "of 30 prompts are trained on too" in capsys.readouterr().err


def test_more_batches_than_there_are_is_no_error(recipe, capsys):
    assert main(["inspect", "--config", str(recipe), "--batches", "100"]) == 0
    assert "An epoch has 7 batches, fewer than the 100 asked for" in capsys.readouterr().out  # 27 samples by fours


def test_d2_most_rows_dropped_is_exit_code_1(recipe, capsys):
    spoil(recipe)
    assert main(["inspect", "--config", str(recipe), "--batches", "0"]) == 1
    assert "STOP: 31 of 61 rows of orders were dropped" in capsys.readouterr().out


def test_json_is_all_of_stdout(recipe, capsys):
    spoil(recipe)
    assert main(["inspect", "--config", str(recipe), "--batches", "1", "--json"]) == 1
    captured = capsys.readouterr()
    values = json.loads(captured.out)
    assert "dropped" in captured.err
    assert values["verdicts"][0]["severity"] == "stop"
    assert values["report"]["sources"][0]["read"] == 61
    assert len(values["batches"][0]["samples"]) == 4


def test_page(recipe, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["inspect", "--config", str(recipe), "--html", str(page)]) == 0
    captured = capsys.readouterr()
    assert "«" not in captured.out
    assert str(page) in captured.err
    assert page.read_text(encoding="utf-8").count("<article>") == 27


@pytest.mark.parametrize(
    ("target", "sentence"), [("nowhere/page.html", "no directory 'nowhere'"), (".", "'.' is a directory")]
)
def test_page_that_cannot_be_written_is_told_first(target, sentence, recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", "--config", str(recipe), "--html", target]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "cache").exists()


def test_colour_on_a_terminal_that_wants_it(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert _wants_color()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not _wants_color()
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not _wants_color()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not _wants_color()


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_fault(recipe):
    spoil(recipe)
    data = recipe.with_name("orders.jsonl")
    row = json.dumps({"instruction": "Long?", "output": "yes " * 200})
    data.write_text("\n".join([row] * 300), encoding="utf-8")  # more than a pipe holds
    command = [sys.executable, "-m", "hf_recipes.cli.main", "inspect", "--config", str(recipe), "--batches", "75"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    assert process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert process.wait(timeout=300) in (0, 1)
    assert "Broken" not in errors and "Traceback" not in errors, errors
