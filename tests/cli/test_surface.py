"""The public surface: what is exported, what importing costs, and how each verb answers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hf_recipes
from hf_recipes.cli.main import VERBS, main

HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "matplotlib")


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_every_export_exists_and_the_two_lists_agree():
    tree = ast.parse(Path(hf_recipes.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.asname: node.module.removeprefix("hf_recipes.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("hf_recipes.")
        and node.module != "hf_recipes.core.version"
        for alias in node.names
    }
    assert typed == hf_recipes._EXPORTS
    for name in hf_recipes._EXPORTS:
        assert getattr(hf_recipes, name).__name__ == name


def test_an_unknown_export_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'build_modle'"):
        hf_recipes.build_modle  # noqa: B018


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_imports_nothing_heavy(verb):
    argv = [verb, "--help"] if verb else ["--help"]
    code = (
        "import sys\nfrom hf_recipes.cli.main import main\n"
        f"try: main({argv!r})\nexcept SystemExit: pass\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    output = run_python(code)
    assert output.splitlines()[-1] == "HEAVY []"
    assert "usage: hf-recipes" in output


def test_the_package_imports_nothing_heavy():
    assert run_python(f"import sys, hf_recipes; print([n for n in {HEAVY!r} if n in sys.modules])").strip() == "[]"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["quikstart"], "unknown verb 'quikstart' (did you mean 'quickstart'?)"),
        (["quickstart", "--learning_rat", "1"], "did you mean 'learning_rate'"),
        (["sft"], "No recipe given"),
        (["sft", "--config", "nowhere.yaml"], "Recipe 'nowhere.yaml' is neither a file nor a shipped recipe"),
        (["sft", "--config", "smollm2/sft_lora", "--learning_rat", "1"], "did you mean 'learning_rate'"),
        (["sft", "--config", "smollm2/sft_lora", "--learning_rate", "fast"], "give a number"),
        (["sft", "--config", "smollm2/sft_lora", "stray"], "'stray' on the command line belongs to no key"),
        (["sft", "--config", "smollm2/sft_lora", "--datasets.0.path", "gone.jsonl"], "gone.jsonl"),
        (["sft", "--config", "smollm2/sft_lora", "--num_processes", "0"], "not a number of processes"),
        (["sft", "--config", "smollm2/sft_lora", "--watch.spike_sgima", "8"], "did you mean 'spike_sigma'"),
        (["sft", "--config", "smollm2/sft_lora", "--resume_from_checkpoint", "last"], "no run of 'sft_lora'"),
        (["verify", "nowhere"], "nowhere"),
        (["merge", "nowhere", "--to", "bf16"], "nowhere"),
        (["merge", ".", "--to", "bf61"], "bf61"),
        (["evaluate", "nowhere"], "'nowhere' does not exist"),
        (["report"], "No run found here"),
        (["cp", "smollm2/sft_lroa"], "did you mean 'smollm2/sft_lora'"),
        (["inspect", "--config", "smollm2/sft_lora", "--batches", "-1"], "not a number of batches"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(argv, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("hf-recipes: ")
    assert captured.err.count("\n") == 1, captured.err
    assert list(tmp_path.iterdir()) == []


def test_no_verb_at_all_shows_the_verbs_and_is_wrong_use(capsys):
    assert main([]) == 2
    assert "quickstart" in capsys.readouterr().out


def test_a_copied_recipe_loads_and_is_never_overwritten(tmp_path, monkeypatch, capsys):
    from hf_recipes.recipe.resolve import load_recipe

    monkeypatch.chdir(tmp_path)
    assert main(["cp", "smollm2/sft_lora", "my.yaml"]) == 0
    values = load_recipe("my.yaml").values
    assert Path(values["datasets"][0]["path"]).is_file()
    assert main(["cp", "smollm2/sft_lora", "my.yaml"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_recipe_may_stand_without_its_flag_and_flags_in_either_spelling(tmp_path, capsys):
    missing = str(tmp_path / "mine.yaml")
    assert main(["inspect", missing]) == 2
    first = capsys.readouterr().err
    assert main(["inspect", "--config", missing]) == 2
    assert capsys.readouterr().err == first and "mine.yaml" in first
    assert main(["evaluate", str(tmp_path), "--max_new_tokens", "3", "--num-processes=1"]) == 2
    assert "unrecognized" not in capsys.readouterr().err
