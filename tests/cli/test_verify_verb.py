from __future__ import annotations

import json
import shutil
import subprocess
import sys

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


@pytest.mark.parametrize("base", ["nowhere", "a-file"])
def test_a_base_that_is_no_directory_is_wrong_use(base, tmp_path, capsys):
    (tmp_path / "a-file").write_text("x")
    assert main(["verify", str(make_model(tmp_path / "model")), "--base", str(tmp_path / base)]) == 2
    assert f"'{tmp_path / base}'" in capsys.readouterr().err


def test_names_from_the_file_neither_forge_lines_nor_command_the_terminal(tmp_path, capsys):
    model = make_model(tmp_path / "model")
    nan = torch.full((2,), float("nan"))
    save_file({"\x1b[31mred\nmodel: good\x07": nan}, model / "model.safetensors")
    assert main(["verify", str(model)]) == 1
    told = capsys.readouterr().out
    assert "\x1b" not in told and "\x07" not in told
    assert "\nmodel: good" not in told


def test_of_thousands_of_problems_the_first_are_shown_and_all_are_in_the_json(tmp_path, capsys):
    model = make_model(tmp_path / "model")
    (model / "manifest.json").unlink()
    save_file({f"t{number}": torch.full((1,), float("nan")) for number in range(300)}, model / "model.safetensors")
    assert main(["verify", str(model)]) == 1
    told = capsys.readouterr().out
    assert len(told.splitlines()) < 60
    assert "… and 250 more; --json lists them all." in told
    assert main(["verify", str(model), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["reports"][0]["problems"]) == 300


@pytest.mark.slow
def test_damage_is_1_whether_or_not_anybody_reads_to_the_end(tmp_path):
    model = make_model(tmp_path / "model")
    (model / "manifest.json").unlink()
    names = {f"tensor number {number} of the model": torch.full((1,), float("nan")) for number in range(3000)}
    save_file(names, model / "model.safetensors")
    code = "import sys; from hf_recipes.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "verify", str(model), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as verifying:
        verifying.stdout.close()  # the reader leaves at once
        assert verifying.wait(timeout=60) == 1
        assert verifying.stderr.read() == b""


def test_an_index_alone_is_judged(tmp_path, capsys):
    (tmp_path / "only").mkdir()
    index = {"metadata": {}, "weight_map": {"w": "../../outside.safetensors"}}
    (tmp_path / "only" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert main(["verify", str(tmp_path / "only")]) == 1
    assert "outside its directory: do not load this model" in capsys.readouterr().out


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "run"
    for name in ("checkpoint-2", "checkpoint-10", "model", "merged-bf16"):
        make_model(directory / name)
    (directory / "run.json").write_text('{"recipe": {}}')
    return directory


def test_a_run_is_verified_whole_in_order(run, capsys):
    assert main(["verify", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].rpartition("/")[2] for line in lines] == [
        "run",  # its records
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


def test_what_an_own_script_saved_in_the_end_is_verified_whatever_its_name(run, capsys):
    (run / "run.json").unlink()
    damaged = make_model(run / "final") / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-4])
    assert main(["verify", str(run)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].rpartition("/")[2] for line in lines if line.startswith(str(run))] == [
        "checkpoint-2",
        "checkpoint-10",
        "final",
        "model",
        "merged-bf16",
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_a_save_that_a_kill_cut_short_is_not_good_though_what_is_there_is_sound(whole, run, capsys):
    (run / "run.json").unlink()
    (run / "checkpoint-10" / "manifest.json").unlink()
    assert main(["verify", str(run if whole else run / "checkpoint-10")]) == 1
    assert "its save was not finished: it has no manifest.json" in capsys.readouterr().out
    (run / "checkpoint-2" / "manifest.json").unlink()  # of a trainer that writes none
    assert main(["verify", str(run)]) == 0


def test_a_trainers_output_without_a_run_json_works_too(run, capsys):
    (run / "run.json").unlink()
    shutil.copy(run / "model" / "model.safetensors", run)
    assert main(["verify", str(run)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7  # the directory itself, with two notes, and the four


def test_a_run_without_anything_to_verify_is_wrong_use(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    assert main(["verify", str(tmp_path)]) == 2
    assert "nothing to verify" in capsys.readouterr().err


def test_a_directory_of_runs_is_verified_run_by_run(run, capsys):
    (run.parent / "begun").mkdir()
    (run.parent / "begun" / "run.json").write_text('{"recipe": {}}')
    assert main(["verify", str(run.parent)]) == 0
    content = bytearray((run / "checkpoint-2" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "checkpoint-2" / "model.safetensors").write_bytes(content)
    capsys.readouterr()
    assert main(["verify", str(run.parent)]) == 1
    assert "model.safetensors: was changed after it was written" in capsys.readouterr().out


def test_a_manifest_further_down_is_told_to_be_left_alone(tmp_path, capsys):
    make_model(tmp_path / "model")
    make_model(tmp_path / "model" / "older")
    assert main(["verify", str(tmp_path / "model")]) == 1  # tensors that its own manifest does not know
    assert "Nothing was compared with 'older/manifest.json', of directories of their own" in capsys.readouterr().out


def test_damaged_records_of_a_run_are_named_with_their_line(run, capsys):
    (run / "status.json").write_text('{"code": 0,\n "sentence": \n')
    (run / "events.jsonl").write_text('{"kind": "log"}\nnot JSON\n{"kind": "log"}\n')
    assert main(["verify", str(run)]) == 1
    output = capsys.readouterr().out
    assert "status.json: is not JSON" in output
    assert "line 3 column" in output
    assert "events.jsonl: line 2 is no JSON object" in output


def test_a_broken_run_json_is_not_good(run, capsys):
    (run / "run.json").write_text("[1]")
    assert main(["verify", str(run)]) == 1
    assert "run.json: is no record of a run" in capsys.readouterr().out


def test_a_log_cut_by_a_kill_is_a_note(run, capsys):
    (run / "events.rank1.jsonl").write_text('{"kind": "log"}\n{"kind": "l')
    assert main(["verify", str(run)]) == 0
    assert "note: events.rank1.jsonl ends within line 2" in capsys.readouterr().out


def test_structure_imports_neither_torch_nor_numpy(tmp_path):
    code = (
        "import sys; from hf_recipes.cli.main import main; "
        "code = main(['verify', sys.argv[1], '--level', 'structure']); "
        "assert not {'torch', 'numpy', 'transformers', 'peft', 'huggingface_hub'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(make_model(tmp_path / "model"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_base_is_used_for_adapters_and_told_where_there_is_none(tmp_path, capsys):
    assert main(["verify", str(make_model(tmp_path / "model")), "--base", str(tmp_path)]) == 0
    assert "was not used: there is no adapter here" in capsys.readouterr().out
