"""Real processes in the place of launcher and ranks: who gets which signal, and that nobody is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
# A launcher that is not one of ours, and is ended by any signal, as accelerate's for one rank is.
LAUNCHER = (
    "import subprocess, sys; "
    "sys.exit(subprocess.run([sys.executable, '-m', 'fake_rank', sys.argv[1], sys.argv[2]]).returncode)"
)
# One that waits for the launchers of other machines when its rank has ended.
WAITING_LAUNCHER = LAUNCHER.replace("sys.exit(", "import time; (").replace(".returncode)", ", time.sleep(600))")
PARENT = """
import json, os, sys
from hf_recipes.training import rank_group

rank_group.MARGIN_SECONDS = rank_group.WITHOUT_RANKS_SECONDS = 1.0
rank_group._LOOK_SECONDS = 0.2
launcher, directory, way = sys.argv[1:]
environment = {**os.environ, "HF_RECIPES_LAUNCHED": str(os.getpid())}
end = rank_group.run_group([sys.executable, "-c", launcher, directory, way], environment, "fake_rank", 1.0)
with open(directory + "/end", "w") as file:
    json.dump([end.code, end.stopped_by, end.killed], file)
"""


class Group:
    def __init__(self, directory, way="rank", launcher=LAUNCHER):
        self.directory = directory
        paths = os.pathsep.join((str(HERE), str(HERE.parents[1])))
        command = [sys.executable, "-c", PARENT, launcher, str(directory), way]
        self.parent = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})
        self.wait_for("ready")
        self.tree = psutil.Process(self.parent.pid).children(recursive=True)
        assert len(self.tree) == 2

    def wait_for(self, name):
        until = time.monotonic() + 60
        while not (self.directory / name).exists() or not (self.directory / name).read_text():
            assert time.monotonic() < until
            time.sleep(0.05)

    def end(self):
        """What `run_group` returned; nobody is left."""
        assert self.parent.wait(60) == 0
        assert not [process for process in self.tree if process.is_running() and process.status() != "zombie"]
        return json.loads((self.directory / "end").read_text())

    def heard(self):
        return (self.directory / "heard").read_text().split()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_reaches_the_rank_and_not_its_launcher(name, tmp_path):
    group = Group(tmp_path)
    group.parent.send_signal(getattr(signal, name))
    assert group.end() == [0, name, None]
    assert group.heard() == [name]


def test_sigusr1_to_all_as_slurm_sends_it_leaves_the_launcher_alive(tmp_path):
    group = Group(tmp_path)
    for process in [psutil.Process(group.parent.pid), *group.tree]:
        process.send_signal(signal.SIGUSR1)
    assert group.end() == [0, "SIGUSR1", None]
    assert set(group.heard()) == {"SIGUSR1"}


def test_sigterm_to_all_ends_the_launcher_and_the_rank_is_waited_for(tmp_path):
    group = Group(tmp_path)
    for process in [*group.tree, psutil.Process(group.parent.pid)]:
        process.send_signal(signal.SIGTERM)
    assert group.end() == [-signal.SIGTERM, "SIGTERM", None]
    assert set(group.heard()) == {"SIGTERM"}


def test_a_rank_that_does_not_end_in_time_is_killed(tmp_path):
    group = Group(tmp_path, "stubborn")
    group.parent.send_signal(signal.SIGTERM)
    code, reason, killed = group.end()
    assert (code, reason) == (-signal.SIGKILL, "SIGTERM")
    assert killed == "the ranks did not end within 2 s"


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    group = Group(tmp_path, "stubborn")
    group.parent.send_signal(signal.SIGINT)
    time.sleep(0.3)
    group.parent.send_signal(signal.SIGINT)
    assert group.end() == [-signal.SIGKILL, "SIGINT", "a second Ctrl-C"]


def test_a_launcher_that_waits_on_when_its_ranks_are_gone_is_ended(tmp_path):
    group = Group(tmp_path, launcher=WAITING_LAUNCHER)
    (rank,) = [each for each in group.tree if "fake_rank" in each.cmdline()]
    time.sleep(1.5)  # it is looked for twice a second
    rank.kill()
    assert group.end() == [-signal.SIGKILL, None, "the launcher did not end after its ranks"]


def test_before_there_is_a_rank_the_launcher_is_ended(tmp_path):
    command = [
        sys.executable,
        "-c",
        PARENT,
        f"open({str(tmp_path / 'ready')!r}, 'w').write('1'); import time; time.sleep(60)",
    ]
    parent = subprocess.Popen([*command, str(tmp_path), "x"])
    until = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    parent.terminate()
    assert parent.wait(60) == 0
    assert json.loads((tmp_path / "end").read_text()) == [-signal.SIGTERM, "SIGTERM", None]
