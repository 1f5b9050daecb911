"""Facts of a machine in, findings out; the network, the devices and the packages are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf_recipes.doctor.environment.clashes import CLASHES, clashes
from hf_recipes.doctor.environment.facts import (
    Builders,
    Disk,
    Driver,
    Facts,
    Holder,
    Lock,
    Machine,
    Packages,
    Probe,
    Reach,
    Unmet,
)
from hf_recipes.doctor.environment.rules import judge
from hf_recipes.doctor.findings import exit_code, render_findings

GB = 10**9
VERSIONS = {
    "torch": "2.13.0+cu126",
    "transformers": "5.24.0",
    "trl": "1.16.0",
    "peft": "0.21.2",
    "accelerate": "1.15.0",
}
DEVICE = {
    "name": "NVIDIA A100",
    "capability": "sm_80",
    "built_for": True,
    "free_bytes": 80 * GB,
    "total_bytes": 81 * GB,
}
RESULTS = {
    "torch": {"version": "2.13.0+cu126", "cuda": "12.6", "hip": None},
    "devices": {"kind": "cuda", "devices": [DEVICE], "complaint": ""},
    "products": {"bf16": True, "errors": {}},
    "attention": {"sdpa": ["flash", "efficient", "math"], "packages": {"flash_attn": ""}},
    "bitsandbytes": {"installed": True, "largest_error": 0.1, "sound": True},
}
SOUND = Facts(
    packages=Packages(VERSIONS),
    machine=Machine(
        cores=8,
        ram_bytes=64 * GB,
        ram_free_bytes=60 * GB,
        shm_bytes=32 * GB,
        shm_free_bytes=32 * GB,
        limits={"nofile": 65536, "memlock": None, "nproc": None},
        disks=(Disk("runs", "/data/runs", 500 * GB, 1000 * GB),),
        clock=2e9,
        newest_file=1.9e9,
    ),
    reach=Reach(token=True),
    builders=Builders(nvcc=True),
    driver=Driver(1, "560.35.03"),
    probe=Probe(RESULTS),
)


def machine(**changes):
    return replace(SOUND, machine=replace(SOUND.machine, **changes))


def probed(stage, **changes):
    results = {**RESULTS, stage: {**RESULTS[stage], **changes}}
    return replace(SOUND, probe=Probe(results))


def test_a_sound_machine_has_nothing_but_ok():
    assert {one.level for one in judge(SOUND)} == {"ok"}
    assert exit_code(judge(SOUND)) == 0


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (replace(SOUND, packages=Packages({"torch": "2.13.0"})), "error", "not installed: transformers, trl, peft"),
        (
            replace(SOUND, packages=Packages(VERSIONS, (Unmet("trl", "transformers>=6", "5.24.0"),))),
            "error",
            "trl requires transformers>=6, and 5.24.0 is installed",
        ),
        (replace(SOUND, packages=Packages(VERSIONS, (Unmet("vllm", "a>1", None),))), "warning", "it is not installed"),
        (replace(SOUND, packages=Packages({**VERSIONS, "torchao": "0.9.0"})), "warning", "torchao 0.9.0 beside peft"),
        (replace(SOUND, packages=Packages(VERSIONS, doubled=("torch",))), "warning", "torch is installed twice"),
        (machine(python=(3, 10, 4)), "error", "3.10.4 is too old"),
        (machine(python=(3, 15, 0)), "note", "newer than what is tested"),
        (machine(container_ram_bytes=8 * GB), "note", "the container may use 8 GB"),
        (machine(disks=(Disk("runs", "/r", GB // 2, GB),)), "error", "runs (/r): 0.5 GB free"),
        (machine(disks=(Disk("Hub cache", "/h", 5 * GB, GB),)), "note", "which one checkpoint of a 7B model"),
        (machine(disks=(Disk("temporary files", "/t", 99 * GB, GB, False),)), "error", "not writable"),
        (machine(shm_bytes=64 << 20, shm_free_bytes=64 << 20), "warning", "/dev/shm holds 0.067 GB"),
        (machine(shm_free_bytes=GB), "warning", "/dev/shm has 1 of 32 GB left"),
        (machine(shm_bytes=None, shm_free_bytes=None), "warning", "there is no /dev/shm"),
        (machine(limits={"nofile": 256}), "warning", "256 open files at most"),
        (machine(limits={"nproc": 100}), "warning", "100 processes and threads at most"),
        (machine(cpu_quota=2.0), "warning", "of which the container may use 2"),
        (replace(SOUND, variables={"OMP_NUM_THREADS": "64"}), "warning", "makes threads wait for each other"),
        (machine(encoding="ANSI_X3.4-1968"), "warning", "files are read as ANSI_X3.4-1968"),
        (machine(clock=1e9), "warning", "the clock says 2001-09-09"),
        (replace(SOUND, reach=Reach(token=True, loopback=False)), "error", "no two ranks can start"),
        (replace(SOUND, reach=Reach(token=True, own_name=False)), "warning", "own name has no address"),
        (
            replace(SOUND, reach=Reach(token=True, proxies=("http_proxy",), no_proxy=False)),
            "warning",
            "http_proxy with",
        ),
        (replace(SOUND, reach=Reach(token=True, port_free=False)), "note", "port 29500"),
        (replace(SOUND, reach=Reach(token=False)), "note", "no token"),
        (replace(SOUND, reach=Reach(offline=True)), "note", "offline"),
        (replace(SOUND, builders=Builders(nvcc=True, compiler=False)), "note", "missing: a C++ compiler"),
        (
            replace(SOUND, builders=Builders(nvcc=True, locks=(Lock("cpu_adam", "/x/lock", 7200.0),))),
            "error",
            "the build of cpu_adam is locked since 120 min",
        ),
        (
            replace(SOUND, builders=Builders(nvcc=True, locks=(Lock("cpu_adam", "/x/lock", 60.0),))),
            "note",
            "cpu_adam is being built",
        ),
        (
            replace(SOUND, driver=Driver(1, "560.1", (Holder(7, "python", ("0",), 600.0),))),
            "note",
            "process 7 (python)",
        ),
        (replace(SOUND, probe=None), "note", "not tried (--quick)"),
        (probed("torch", cuda=None), "error", "is built without CUDA, and this machine has 1 NVIDIA"),
        (probed("torch", cuda="13.0"), "error", "needs a driver of 580 or newer"),
        (
            probed("torch", error="ImportError: libc"),
            "error",
            "torch cannot be imported: nothing can train (ImportError",
        ),
        (probed("devices", devices=[], kind="cpu"), "error", "in /dev, and torch sees none"),
        (probed("devices", devices=[{**DEVICE, "built_for": False}]), "warning", "holds no kernels for it"),
        (probed("devices", devices=[{**DEVICE, "free_bytes": GB}]), "note", "the rest is in use"),
        (probed("products", bf16=False), "note", "no bf16 arithmetic"),
        (probed("products", errors={"float32": "x"}), "error", "no products in float32"),
        (probed("attention", packages={"flash_attn": "ImportError: undefined"}), "warning", "cannot be imported"),
        (probed("attention", sdpa=["math"]), "warning", "no memory-saving kernel"),
        (probed("bitsandbytes", sound=False, largest_error=2.0), "error", "is off by 2"),
        (probed("bitsandbytes", installed=False), "note", "not installed: no QLoRA"),
        (
            replace(SOUND, probe=Probe({"torch": RESULTS["torch"]}, "devices", "the process was ended by SIGSEGV")),
            "error",
            "torch cannot ask for its devices: the process was ended by SIGSEGV",
        ),
    ],
)
def test_each_fault_is_one_finding_with_its_level(facts, level, words):
    found = [one for one in judge(facts) if one.level != "ok"]
    assert [one.level for one in found] == [level], render_findings(found)
    assert words in found[0].sentence
    assert exit_code(found) == (level == "error")
    assert level not in ("warning", "error") or found[0].cure


def test_a_machine_without_a_gpu_is_only_noted():
    facts = replace(
        probed("devices", devices=[], kind="cpu"), driver=Driver(), builders=Builders(), reach=Reach(token=True)
    )
    assert {one.level for one in judge(facts)} == {"ok", "note"}


@pytest.mark.parametrize("clash", CLASHES, ids=lambda clash: f"{clash.package}-{clash.beside}")
def test_a_clash_holds_below_its_bound_and_not_at_it(clash):
    bound = clash.versions.lstrip("<>=")
    beside = clash.beside_versions.lstrip("<>=") or "5.24.0"
    old, fine = ("2.0", "1.26") if clash.versions.startswith("<") else ("0.0.1", bound)
    beside = "2.2" if clash.beside_versions.startswith("<") else beside
    assert clashes({clash.package: old, clash.beside: beside}) == [clash]
    assert clashes({clash.package: f"{fine}+cu1", clash.beside: beside}) == []
    assert clashes({clash.package: old}) == []
    assert clashes({clash.package: "no version", clash.beside: beside}) == []


def test_findings_are_shown_in_columns_with_their_cure_below():
    told = render_findings([one for one in judge(machine(python=(3, 10, 4))) if one.topic in ("python", "cores")])
    assert told.splitlines() == [
        "error  python  3.10.4 is too old",
        "               → use Python 3.11 to 3.13",
        "ok     cores   8 cores",
    ]
