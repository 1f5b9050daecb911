from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.cli.main import main


def make_model(directory, value=1.0):
    directory.mkdir(parents=True)
    save_file({"w": torch.full((4, 4), value)}, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    write_manifest(directory)
    return directory


def test_a_good_model_is_0_and_one_line(tmp_path, capsys):
    assert main(["verify", str(make_model(tmp_path / "model"))]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "good (content; 2 files, 1 tensors" in line


def test_damage_is_1_and_named(tmp_path, capsys):
    model = make_model(tmp_path / "model")
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "model.safetensors").write_bytes(content)
    assert main(["verify", str(model)]) == 1
    assert "model.safetensors: was changed after it was written" in capsys.readouterr().out
    assert main(["verify", str(model), "--level", "structure"]) == 0


def test_wrong_use_is_2_and_one_sentence(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "does not exist" in error


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "run"
    for name in ("checkpoint-2", "checkpoint-10", "model", "merged-bf16"):
        make_model(directory / name)
    (directory / "run.json").write_text("{}")
    return directory


def test_a_run_is_verified_whole_in_order(run, capsys):
    assert main(["verify", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].rpartition("/")[2] for line in lines] == [
        "checkpoint-2",
        "checkpoint-10",
        "model",
        "merged-bf16",
    ]


def test_an_empty_checkpoint_of_a_run_does_not_hide_the_others(run, capsys):
    (run / "checkpoint-11").mkdir()
    assert main(["verify", str(run), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert not result["ok"]
    bad = [report for report in result["reports"] if not report["ok"]]
    assert [report["directory"].rpartition("/")[2] for report in bad] == ["checkpoint-11"]
    assert "is empty" in bad[0]["problems"][0]["what"]


def test_a_trainers_output_without_a_run_json_works_too(run, capsys):
    (run / "run.json").unlink()
    shutil.copy(run / "model" / "model.safetensors", run)
    assert main(["verify", str(run)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6  # the directory itself, with a note, and the four


def test_a_run_without_anything_to_verify_is_wrong_use(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    assert main(["verify", str(tmp_path)]) == 2
    assert "nothing to verify" in capsys.readouterr().err
