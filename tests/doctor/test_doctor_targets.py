"""`hf-recipes doctor`: this machine, a run, a log in a file or on standard input; its exit codes."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from hf_recipes.cli.main import main

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_this_machine_for_an_issue(capsys):
    code = main(["doctor", "--quick", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"schema", "versions", "hardware", "variables", "findings", "errors", "warnings"}
    assert code == int(told["errors"] > 0)
    assert {"level", "topic", "sentence", "cure"} == set(told["findings"][0])


def test_this_machine_for_people(capsys):
    main(["doctor", "--quick"])
    assert "note  torch" in capsys.readouterr().out.replace("  " * 3, "  ")


def test_a_file_on_standard_input_that_nobody_asked_to_read_is_told(tmp_path, capsys, monkeypatch):
    (tmp_path / "log").write_text(OOM)
    with open(tmp_path / "log") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        main(["doctor", "--quick"])
    assert "to read the log on standard input: hf-recipes doctor - < FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "words"), [(OOM, 1, "gpu_out_of_memory, at line 2"), ("", 0, "Nothing known")]
)
@pytest.mark.parametrize("by", ["file", "standard input"])
def test_a_log(text, code, words, by, tmp_path, capsys, monkeypatch):
    (tmp_path / "log").write_text(f"begin\n{text}")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO((tmp_path / "log").read_bytes())))
    assert main(["doctor", str(tmp_path / "log") if by == "file" else "-"]) == code
    assert words in capsys.readouterr().out


def test_a_log_as_json(tmp_path, capsys):
    (tmp_path / "log").write_text(OOM)
    assert main(["doctor", str(tmp_path / "log"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["root"]["name"] == "gpu_out_of_memory"


@pytest.mark.parametrize(("loss", "code"), [(1.0, 0), (float("nan"), 1)])
def test_a_run(loss, code, tmp_path, capsys):
    history = [{"step": 1, "loss": 2.0, "learning_rate": 1e-4}, {"step": 2, "loss": loss, "learning_rate": 1e-4}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 2}))
    assert main(["doctor", str(tmp_path)]) == code
    assert ("not finite" in capsys.readouterr().out) == bool(code)
    assert main(["doctor", str(tmp_path / "trainer_state.json")]) == code
    capsys.readouterr()
    assert main(["doctor", str(tmp_path), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["healthy"] == (not code)


def test_what_is_neither_is_wrong_use(tmp_path, capsys):
    assert main(["doctor", str(tmp_path)]) == 2
    assert "is no run" in capsys.readouterr().err
