from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.core.events import EventLog
from hf_recipes.training import launch as launch_module
from hf_recipes.training.launch import launch, launch_command, launch_environment


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


@pytest.mark.parametrize(
    ("status", "launcher_code", "code"),
    [({"code": 0}, 0, 0), ({"code": 2}, 0, 2), ({"code": 1}, 0, 1), ({"code": 0}, 9, 1), (None, 1, 1), (None, 0, 0)],
)
def test_the_exit_code_is_that_of_the_run(status, launcher_code, code, tmp_path, monkeypatch):
    def run(*_args):
        if status is not None:
            (tmp_path / "status.json").write_text(json.dumps(status))
        return launcher_code

    (tmp_path / "status.json").write_text(json.dumps({"code": 5}))  # of an earlier run: must not be read
    monkeypatch.setattr(launch_module, "run_group", run)
    assert launch("m", [], tmp_path) == code


def test_sigterm_reaches_the_ranks_too(tmp_path):
    """`accelerate launch` killed by SIGTERM leaves its rank behind; the whole group has to go."""
    beat = tmp_path / "beat"
    rank = f"import time\nwhile True:\n    open({str(beat)!r}, 'a').write('.')\n    time.sleep(0.05)"
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"
    parent = (
        "import os, sys; from hf_recipes.training.launch import run_group; "
        f"run_group([sys.executable, '-c', {launcher!r}], dict(os.environ))"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    deadline = time.monotonic() + 30
    while not beat.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    assert process.wait(30) == 128 + 15
    beats = beat.stat().st_size
    time.sleep(1)
    assert beat.stat().st_size == beats


def test_a_missing_config_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"--config_file: .none\.yaml. does not exist"):
        launch("m", [], tmp_path, config_file="none.yaml")


@pytest.mark.parametrize("gone", [False, True])
def test_ranks_that_leave_no_status_get_one_from_the_launcher(gone, tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path, 0)
    log.write("log", 12, loss=1.0)
    if gone:
        log.write("alarm", 13, detector="ranks", verdict="gone", message="Step 13: rank 1 is gone.")
    monkeypatch.setattr(launch_module, "run_group", lambda command, environment: 1)
    assert launch("hf_recipes.sft", [], tmp_path) == 1
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["code"], status["last_step"]) == (1, 13 if gone else 12)
    expected = "Step 13: rank 1 is gone." if gone else "the ranks ended without a word"
    assert expected in status["sentence"]
    assert expected in caplog.records[-1].getMessage()


def test_a_launcher_told_to_terminate_says_so_in_the_status(tmp_path, monkeypatch):
    def terminated(command, environment):
        raise SystemExit(143)

    monkeypatch.setattr(launch_module, "run_group", terminated)
    with pytest.raises(SystemExit):
        launch("hf_recipes.sft", [], tmp_path)
    status = json.loads((tmp_path / "status.json").read_text())
    assert "terminated by a signal (exit code 143); go on with --resume_from_checkpoint last" in status["sentence"]
