from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from export_helpers import change_tensors, tensors_of

from hf_recipes.cli.main import main


@pytest.fixture
def run(tmp_path, adapter):
    """A finished run with an adapter."""
    shutil.copytree(adapter, tmp_path / "run" / "adapter")
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


def test_a_run_is_merged_into_itself(run, capsys):
    assert main(["merge", str(run), "--to", "bf16"]) == 0
    assert tensors_of(run / "merged-bf16")
    first, proof, beside = capsys.readouterr().out.splitlines()
    assert "tensors in bf16" in first
    assert "recomputed by another route, the same to the bit" in proof
    assert "beside the weights" in beside or "tokenizer" in beside, beside


def test_without_a_path_the_current_run_is_taken_and_told(run, monkeypatch, capsys):
    monkeypatch.chdir(run)
    assert main(["merge", "--to", "fp16", "--proof", "off"]) == 0
    assert (run / "merged-fp16" / "model.safetensors").is_file()
    assert f"Merging the adapter of {run}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["adapter", "checkpoint-7"])
def test_an_adapter_or_checkpoint_is_merged_beside_itself(tmp_path, adapter, name, monkeypatch):
    directory = tmp_path / name
    if not directory.exists():
        shutil.copytree(adapter, directory)
    monkeypatch.chdir(directory)
    assert main(["merge", ".", "--to", "fp32"]) == 0
    assert (tmp_path / f"{name}-merged-fp32" / "config.json").is_file()


def test_a_directory_with_an_adapter_in_it_is_told_which(adapter, tmp_path, capsys):
    shutil.copytree(adapter, tmp_path / "mine" / "final")
    assert main(["merge", str(tmp_path / "mine"), "--to", "bf16"]) == 2
    assert f"give one in it, such as '{tmp_path / 'mine' / 'final'}'" in capsys.readouterr().err


@pytest.mark.parametrize("templated", [True, False])
def test_how_to_ask_the_merged_model_is_a_line_that_runs(templated, adapter, tmp_path, capsys, tokenizer):
    """What is printed is Python; a model with a template is asked by it."""
    tokenizer.save_pretrained(adapter)
    if not templated:
        (adapter / "chat_template.jinja").unlink()
    assert main(["merge", str(adapter), "--to", "fp32", "--output", str(tmp_path / "out"), "--proof", "off"]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "To ask it something" in line)
    assert ('{"role": "user"' in line) is templated

    def pipeline(task, model):
        """Answers as transformers' does: a conversation with its next turn, or a text."""
        assert (task, model) == ("text-generation", str(tmp_path / "out"))
        return lambda asked, **_: [
            {"generated_text": [*asked, {"content": "so"}] if isinstance(asked, list) else f"{asked} so"}
        ]

    code = line.partition("something: ")[2]
    assert eval(code, {"transformers": SimpleNamespace(pipeline=pipeline)}) == ("so" if templated else "… so")


def test_json_is_the_report(adapter, tmp_path, capsys):
    assert main(["merge", str(adapter), "--to", "bf16", "--output", str(tmp_path / "out"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "out" / "hf_recipes_merge.json").read_text())
    assert report["dtype"] == "bf16"


def test_a_failed_check_is_1(adapter, capsys):
    change_tensors(adapter, lambda tensors: [torch.zero_(t) for name, t in tensors.items() if "lora_B" in name])
    assert main(["merge", str(adapter), "--to", "bf16"]) == 1
    assert "changes nothing" in capsys.readouterr().err


def test_wrong_use_is_2_and_one_sentence(tmp_path, adapter, run, capsys):
    full = tmp_path / "full"
    (full / "model").mkdir(parents=True)
    (full / "model" / "config.json").write_text("{}")
    (full / "run.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").mkdir()
    cases = {
        (str(tmp_path / "nowhere"), "--to", "bf16"): "nowhere' does not exist",
        (str(tmp_path / "empty"), "--to", "bf16"): "is neither a run",
        (str(full), "--to", "bf16"): "is the model already, nothing to merge",
        (str(adapter), "--to", "bf61"): "bf61",
        (str(adapter), "--to", "auto"): "auto",
        (str(adapter),): "--to",
        (str(adapter), "--to", "bf16", "--proof", "trust"): "trust",
        (str(adapter), "--to", "bf16", "--output", str(tmp_path / "taken")): "taken' exists",
        (str(adapter), "--to", "bf16", "--base", str(tmp_path / "gone")): "--base",
    }
    for argv, sentence in cases.items():
        assert main(["merge", *argv]) == 2, argv
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1, error
