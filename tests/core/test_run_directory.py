from __future__ import annotations

import os

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.core.run_directory import RunDirectory, checkpoint_step, find_run, is_run, list_checkpoints


def make_run(path, modified: int = 0):
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    os.utime(path / "run.json", (1_000_000 + modified, 1_000_000 + modified))
    return path


def test_checkpoints_are_sorted_by_step_and_other_names_passed_over(tmp_path):
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-100", "checkpoint-x", "checkpoint-5-tmp", "adapter"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10", "checkpoint-100"]
    assert RunDirectory(tmp_path).checkpoints() == list_checkpoints(tmp_path)
    assert list_checkpoints(tmp_path / "absent") == []


def test_the_step_is_read_from_the_name_or_refused(tmp_path):
    assert checkpoint_step(tmp_path / "checkpoint-120") == 120
    with pytest.raises(UserError, match="must be checkpoint-N"):
        checkpoint_step(tmp_path / "final")


def test_the_result_is_the_adapter_or_the_model_once_whole(tmp_path):
    run = RunDirectory(tmp_path)
    run.adapter.mkdir()
    with pytest.raises(UserError, match="no finished result"):
        _ = run.result
    run.model.mkdir()
    (run.model / "config.json").write_text("{}")
    assert run.result == run.model
    (run.adapter / "adapter_config.json").write_text("{}")
    assert run.result == run.adapter


def test_json_files_of_a_run_read_back_or_say_what_is_wrong(tmp_path):
    run = RunDirectory(tmp_path)
    run.write(run.status_json, {"code": 0, "sentence": "done", "last_step": 3})
    assert run.read(run.status_json)["last_step"] == 3
    with pytest.raises(UserError, match=r"data\.json is missing"):
        run.read(run.data_json)
    run.run_json.write_text('{"half')
    with pytest.raises(UserError, match=r"run\.json is not valid JSON"):
        run.read(run.run_json)


def test_merged_forms_have_their_own_places(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.merged("bf16") == run.merged_bf16 == tmp_path / "merged-bf16"
    assert run.merged("fp16") == tmp_path / "merged-fp16"


def test_a_run_is_found_by_path_or_refused_in_one_sentence(tmp_path):
    run = make_run(tmp_path / "a")
    assert is_run(run)
    assert find_run(run).path == run
    with pytest.raises(UserError, match="does not exist"):
        find_run(tmp_path / "absent")
    with pytest.raises(UserError, match="is not a run directory"):
        find_run(tmp_path)


def test_without_a_path_the_current_run_then_the_newest_under_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="No run found"):
        find_run(None)
    make_run(tmp_path / "runs" / "older", modified=10)
    newest = make_run(tmp_path / "runs" / "a-newer-one", modified=20)
    (tmp_path / "runs" / "not-a-run").mkdir()
    assert find_run(None).path.resolve() == newest
    monkeypatch.chdir(tmp_path / "runs" / "older")
    assert find_run(None).path == tmp_path / "runs" / "older"
