"""What the gatherers read: packages, locks, devices, the process with torch; and what is hidden of it."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.doctor.environment.check import as_report, findings_of, gather_facts
from hf_recipes.doctor.environment.driver import look_at_driver
from hf_recipes.doctor.environment.facts import Facts, Unmet
from hf_recipes.doctor.environment.machine import look_at_builders
from hf_recipes.doctor.environment.packages import unmet
from hf_recipes.doctor.environment.probe import RunningProbe
from hf_recipes.doctor.environment.reach import look_at_reach
from hf_recipes.doctor.environment.stages import STAGES
from hf_recipes.doctor.findings import Finding
from hf_recipes.doctor.private import Hider, without_names


def test_a_requirement_is_unmet_by_another_version_or_by_none():
    required = {"trl": ["Transformers>=5,<6", "absent>1", "other; extra == 'x'", "old; python_version < '3'", "((("]}
    found = unmet(required, {"transformers": "4.9", "trl": "1"})
    assert found == (Unmet("trl", "Transformers<6,>=5", "4.9"), Unmet("trl", "absent>1", None))


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_bound_is_met_from_itself_on(bound, version):
    assert bool(unmet({"a": [f"b>={bound}"]}, {"b": str(version)})) == (version < bound)


def test_a_lock_that_a_killed_build_left_is_found_with_its_age(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (1000.0, 1000.0))
    (found,) = look_at_builders(now=4600.0).locks
    assert (found.operation, found.path, found.age_seconds) == ("cpu_adam", str(lock), 3600.0)


def test_the_driver_is_read_from_the_kernel(tmp_path):
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    assert look_at_driver(proc, dev).devices == 0
    (proc / "driver/nvidia").mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Feb 2024\n"
    )
    dev.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (dev / name).touch()
    (proc / "4242/fd").mkdir(parents=True)
    (proc / "4242/fd/7").symlink_to("/dev/nvidia1")
    (proc / "4242/comm").write_text("python\n")
    found = look_at_driver(proc, dev)
    assert (found.devices, found.version) == (2, "535.161.08")
    (holder,) = found.holders
    assert (holder.pid, holder.name, holder.devices) == (4242, "python", ("1",))


def probe(code: str, patience: float = 60.0):
    running = RunningProbe([sys.executable, "-c", code])
    try:
        return running.result(patience)
    finally:
        running.stop()


BEGIN = "import json, os, signal, sys, time; say = lambda **v: print(json.dumps(v), flush=True); say(stage='torch');"


def test_what_came_before_a_crash_is_kept_and_the_crash_is_a_finding():
    done = BEGIN + "say(stage='torch', result={'version': '1'}); print('a library talks'); say(stage='devices');"
    found = probe(done + "os.kill(os.getpid(), signal.SIGSEGV)")
    assert found.results == {"torch": {"version": "1"}}
    assert (found.failed_stage, found.failure) == ("devices", "the process was ended by SIGSEGV")


def test_a_process_that_hangs_is_ended():
    found = probe(BEGIN + "time.sleep(600)", patience=2.0)
    assert (found.failed_stage, found.failure) == ("torch", "it was not done after 2 s")


def test_the_last_words_of_a_process_that_fails_are_told():
    found = probe(BEGIN + "sys.exit('no such library')")
    assert found.failure == "the process ended with exit code 1: no such library"


@pytest.mark.trials
def test_the_stages_work_with_the_installed_torch():
    running = RunningProbe()
    try:
        found = running.result(600.0)
    finally:
        running.stop()
    assert found.failed_stage is None, found.failure
    assert set(found.results) == set(STAGES)
    assert all("error" not in result for result in found.results.values()), found.results
    assert found.results["bitsandbytes"]["sound"]


def test_tokens_and_proxies_are_told_without_their_values(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:password@proxy")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "localhost")
    found = look_at_reach()
    assert (found.token, found.proxies, found.no_proxy) == (True, ("https_proxy",), True)
    assert "secret" not in repr(found)
    assert "password" not in repr(found)


def test_home_names_and_secrets_are_hidden():
    hide = Hider("/home/anna", "anna", "node17")
    assert hide("/home/anna/runs of anna on node17") == "~/runs of USER on HOST"
    assert hide("/home/annabel is another") == "/home/USER is another"
    assert hide("hf_abcdefgh12345678 at https://anna:pw@x") == " at https://x"
    assert Hider("/", "root", "localhost")("/data of root on localhost") == "/data of root on localhost"
    (found,) = without_names([Finding("ok", "disk", f"{os.path.expanduser('~')}/x", "y")])  # noqa: PTH111
    assert found.sentence == "~/x"


def test_this_machine_is_looked_at_without_torch():
    facts = gather_facts(quick=True)
    findings = findings_of(facts)
    assert {"packages", "python", "memory", "cores", "disk", "network"} <= {one.topic for one in findings}
    report = as_report(findings, facts)
    assert report["versions"]["python"]
    assert report["hardware"]["cores"] >= 1
    assert isinstance(facts, Facts)
