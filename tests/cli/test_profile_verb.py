"""`hf-recipes profile` from the command line."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from hf_recipes.cli import profile
from hf_recipes.core.errors import UserError


def options(*arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    profile.add_arguments(parser)
    parsed, keys = parser.parse_known_args(arguments)
    parsed.recipe_keys = keys
    return parsed


@pytest.fixture
def recipe(tiny_model_dir, tmp_path, monkeypatch):
    """Twenty rows and a recipe that names them."""
    monkeypatch.setenv("HF_RECIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows = [{"instruction": f"How many pens {n}?", "output": f"{n} pens"} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    path = tmp_path / "my.yaml"
    path.write_text(
        f"model_name_or_path: {tiny_model_dir}\ndatasets: [rows.jsonl]\nlogging_steps: 1\n", encoding="utf-8"
    )
    return str(path)


def test_text_and_nothing_left_behind(recipe, tmp_path, capsys):
    assert profile.run(options("--config", recipe, "--steps", "1")) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("== Where a step goes (1 traced steps of my) ==")
    for phase in ("data", "forward", "loss", "backward", "optimizer", "communication", "other"):
        assert f"\n{phase} " in shown
    assert "% MFU" in shown and "matrix products in" in shown
    assert "\nyes  Does data take" in shown or "\nNO   Does data take" in shown
    assert "'loss':" not in shown  # the Trainer's own prints
    assert not (tmp_path / "runs").exists()


def test_json_is_all_of_stdout_and_kept_with_the_trace(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ("--config", recipe, "--steps", "1", "--json", "--output", str(out), "--lora_dropout", "0.25")
    assert profile.run(options(*arguments)) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["setting"]["dropout"] == 0.25
    assert values["steps"] == 1
    assert values["caveat"].startswith("Only one step was timed")
    assert {check["yes"] for check in values["checks"]} <= {True, False}
    assert json.loads((out / "profile.json").read_text()) == values
    assert json.loads((out / "trace.json").read_text())["traceEvents"]
    with pytest.raises(UserError, match="holds files already"):
        profile.run(options(*arguments))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "No recipe given"),
        (("--config", "my.yaml", "--steps", "0"), "--steps: '0' is not a number of steps"),
        (("--config", "my.yaml", "--steps", "abc"), "^--steps: 'abc' is not a number of steps: give a whole number"),
        (("--config", "my.yaml", "--step", "1"), "^--step is no option of .* \\(did you mean 'steps'\\?\\)\\.$"),
        (("--confg", "my.yaml"), "did you mean 'config'"),
        (("--config", "my.yaml", "--max_step", "1"), "did you mean 'max_steps'"),
        (("--config", "my.yaml", "--trace", "nowhere/trace.json"), "no directory 'nowhere'"),
        (("--config", "my.yaml", "--trace", "."), "'.' is a directory"),
        (("--config", "my.yaml", "--lora_rr", "3"), "lora_r"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, sentence, recipe):
    with pytest.raises(UserError, match=sentence):
        profile.run(options(*arguments))


LABELLED = [{"text": f"message {n}", "label": ("order", "chat")[n % 2]} for n in range(20)]


def classifier(datasets, rows=LABELLED, more=""):
    with open("labelled.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with open("my.yaml", encoding="utf-8") as file:
        text = file.read().replace("[rows.jsonl]", datasets)
    with open("classifier.yaml", "w", encoding="utf-8") as file:
        file.write(text + more)
    return options("--config", "classifier.yaml", "--steps", "1")


@pytest.mark.parametrize(
    ("datasets", "rows", "more", "sentence"),
    [
        ("[labelled.jsonl]", LABELLED, "", "'classifier' trains a classifier.* write format: text"),
        (
            "[{path: labelled.jsonl, columns: {text: said, label: kind}}]",
            [{"said": row["text"], "kind": row["label"]} for row in LABELLED],
            "",
            "its rows have text and label",
        ),
        (
            "[labelled.jsonl]",
            [{"text": row["text"]} for row in LABELLED],
            "max_label_share: 0.9\n",
            "max_label_share is its key",
        ),
    ],
)
def test_a_recipe_of_a_classifier_is_refused(recipe, datasets, rows, more, sentence):
    with pytest.raises(UserError, match=sentence):
        profile.run(classifier(datasets, rows, more))


@pytest.mark.parametrize(
    ("datasets", "rows"),
    [
        ("[{path: labelled.jsonl, format: text}]", LABELLED),
        ("[labelled.jsonl]", [{"instruction": "Say a", "output": "a", **row} for row in LABELLED]),
    ],
)
def test_labels_beside_what_a_language_model_learns_are_no_classifier(recipe, datasets, rows, capsys):
    assert profile.run(classifier(datasets, rows)) == 0


def test_help_imports_neither_torch_nor_transformers():
    code = (
        "import argparse, sys; from hf_recipes.cli import profile; p = argparse.ArgumentParser(); "
        "profile.add_arguments(p); p.format_help(); print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
