from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.core.events import EventLog
from hf_recipes.training import launch as launch_module
from hf_recipes.training.environment import MACHINE_END
from hf_recipes.training.launch import launch, launch_command, launch_environment
from hf_recipes.training.rank_group import GroupEnd


def test_several_ranks_are_started_as_such_and_one_is_not():
    assert "--multi_gpu" in launch_command("m", [], 2, None)
    assert "--multi_gpu" not in launch_command("m", [], 1, None)
    assert launch_command("hf_recipes.sft", ["--config", "r"], 1, None)[-4:] == [
        "-m",
        "hf_recipes.sft",
        "--config",
        "r",
    ]


def test_cpu_ranks_are_really_cpu_ranks(monkeypatch):
    monkeypatch.setattr(launch_module, "has_accelerator", lambda: False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(launch_module, "usable_cores", lambda: 8)
    environment = launch_environment(2)
    assert environment["ACCELERATE_USE_CPU"] == "true"
    assert environment["OMP_NUM_THREADS"] == "4"


def test_a_machine_with_a_gpu_is_left_to_accelerate(monkeypatch):
    monkeypatch.setattr(launch_module, "has_accelerator", lambda: True)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    assert "ACCELERATE_USE_CPU" not in launch_environment(2)


def test_devices_get_the_settings_their_makers_advise_and_users_keep_their_own(monkeypatch):
    monkeypatch.setattr(launch_module, "has_accelerator", lambda: True)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    environment = launch_environment(2)
    assert environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert environment["NCCL_DEBUG"] == "INFO"
    monkeypatch.setattr(launch_module, "has_accelerator", lambda: False)
    assert "PYTORCH_ALLOC_CONF" not in launch_environment(2)


@pytest.mark.parametrize(
    ("status", "launcher_code", "code"),
    [({"code": 0}, 0, 0), ({"code": 2}, 0, 2), ({"code": 1}, 0, 1), ({"code": 0}, 9, 1), (None, 1, 1), (None, 0, 2)],
)
def test_the_exit_code_is_that_of_the_run(status, launcher_code, code, tmp_path, monkeypatch):
    def run(*_args):
        if status is not None:
            (tmp_path / "status.json").write_text(json.dumps(status))
        return GroupEnd(launcher_code)

    (tmp_path / "status.json").write_text(json.dumps({"code": 5}))  # of an earlier run: must not be read
    monkeypatch.setattr(launch_module, "run_group", run)
    assert launch("m", [], tmp_path) == code


@pytest.mark.parametrize("launcher", [0, 1])
def test_what_a_rank_told_where_it_could_leave_no_status_is_the_end(launcher, tmp_path, monkeypatch, caplog):
    """The directory is another run's, or its disk is full."""
    (tmp_path / "events.jsonl").write_text("")

    def run(_command, environment, *_more):
        told = {"code": 2, "sentence": "is being written by another run"}
        Path(environment[MACHINE_END]).write_text(json.dumps(told))
        return GroupEnd(launcher)

    monkeypatch.setattr(launch_module, "run_group", run)
    assert launch("m", [], tmp_path) == 2
    assert not (tmp_path / "status.json").exists()  # nothing is said of the other run
    assert ("is being written" in caplog.text) == bool(launcher)  # last, below a traceback


@pytest.mark.parametrize("status", [{"code": 75}, {"code": 0}])
def test_a_launcher_that_fails_because_it_was_stopped_changes_nothing(status, tmp_path, monkeypatch):
    def run(*_args):
        (tmp_path / "status.json").write_text(json.dumps(status))
        return GroupEnd(-15, "SIGTERM")

    monkeypatch.setattr(launch_module, "run_group", run)
    assert launch("m", [], tmp_path) == status["code"]


def test_a_missing_config_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"--config_file: .none\.yaml. does not exist"):
        launch("m", [], tmp_path, config_file="none.yaml")


@pytest.mark.parametrize("gone", [False, True])
def test_ranks_that_leave_no_status_get_one_from_the_launcher(gone, tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path, 0)
    log.write("log", 12, loss=1.0)
    if gone:
        log.write("alarm", 13, detector="ranks", verdict="gone", message="Step 13: rank 1 is gone.")
    monkeypatch.setattr(launch_module, "run_group", lambda *_: GroupEnd(1))
    assert launch("hf_recipes.sft", [], tmp_path) == 1
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["code"], status["last_step"]) == (1, 13 if gone else 12)
    expected = "Step 13: rank 1 is gone." if gone else "the ranks ended without a word"
    assert expected in status["sentence"]
    assert expected in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("end", "has_checkpoint", "code", "sentence"),
    [
        (GroupEnd(-15, "SIGTERM"), False, 75, "stopped by SIGTERM while nothing was being trained"),
        (GroupEnd(-9, "SIGTERM", "the ranks did not end"), True, 75, "newest good checkpoint is checkpoint-3"),
        (GroupEnd(-9, "SIGTERM", "the ranks did not end"), False, 1, "there is no checkpoint to go on from"),
    ],
)
def test_a_stopped_run_that_left_no_status_gets_one(end, has_checkpoint, code, sentence, tmp_path, monkeypatch):
    if has_checkpoint:
        (tmp_path / "checkpoint-3").mkdir()
        (tmp_path / "checkpoint-3" / "verified.json").write_text('{"ok": true}')
    monkeypatch.setattr(launch_module, "run_group", lambda *_: end)
    assert launch("m", [], tmp_path / ".") == code
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["code"] == code
    assert sentence in status["sentence"]


def test_ctrl_c_before_the_run_knew_is_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setattr(launch_module, "run_group", lambda *_: GroupEnd(1, "SIGINT"))
    with pytest.raises(KeyboardInterrupt):
        launch("m", [], tmp_path)
    assert json.loads((tmp_path / "status.json").read_text())["code"] == 130
