"""What the installed stack really says, against the table: each fault is made on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from provoked import CALLED, NOTICES, PROVOKED

from hf_recipes.doctor.log.diagnosis import diagnose_log

HERE = Path(__file__).parent
# What needs neither torch nor transformers is made in every run.
LIGHT = ("too_many_files", "disk_full", "not_utf8", "not_picklable", "json_broken", "json_types", "missing_module")


@pytest.mark.parametrize("name", LIGHT)
def test_a_fault_of_the_system_is_named(name, tmp_path):
    code = f"import provoked; provoked.PROVOKED['{name}']()"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=HERE, env=environment(tmp_path)).stderr
    (tmp_path / "log").write_bytes(told)
    check(name, tmp_path / "log")


@pytest.fixture(scope="module")
def provoked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("provoked")
    command = [sys.executable, "provoked.py", str(folder)]
    subprocess.run(command, cwd=HERE, env=environment(folder), check=True, timeout=1800)
    return folder


@pytest.mark.trials
@pytest.mark.parametrize("name", PROVOKED)
def test_a_provoked_fault_is_named(name, provoked):
    check(name, provoked / f"{name}.txt")


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(HERE), str(HERE.parent)])
    return {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder), "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}


def check(name: str, log: Path) -> None:
    with open(log, "rb") as file:
        found = diagnose_log(file)
    told = log.read_text(errors="replace")[-2000:]
    assert (found.root and found.root.name) == CALLED.get(name, name), told
    if name in NOTICES:
        assert [hit.name for hit in found.notices] == [NOTICES[name]], told
