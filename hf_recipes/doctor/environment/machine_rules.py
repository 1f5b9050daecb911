"""What the machine and its container give a run: memory, disks, limits, cores, encoding, clock."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from hf_recipes.doctor.environment.facts import Disk, Facts
from hf_recipes.doctor.findings import Finding

_GB = 1e9
_FULL_BYTES, _TIGHT_BYTES = 1 * _GB, 20 * _GB
_SHM_BYTES = 1 * _GB  # Docker's default is 64 MB
_FILES = 4096
_LOCKED_BYTES = 64 << 20
_PROCESSES = 4096
_THREADS = re.compile(
    r"\s*0*[1-9][0-9]*(?:\s*,\s*0*[1-9][0-9]*)*\s*"
)  # one number for each nested level (OpenMP 5.2, 21.1.2)
_CLOCK_SLACK_SECONDS = 86400.0
_EARLIEST_CLOCK = 1.7e9  # November 2023


def on_memory(facts: Facts) -> Iterator[Finding]:
    """Memory of the machine and of its container."""
    machine = facts.machine
    shown = f"{machine.ram_free_bytes / _GB:,.3g} of {machine.ram_bytes / _GB:,.3g} GB free"
    if machine.container_ram_bytes is not None:
        limit = f"{machine.container_ram_bytes / _GB:,.3g} GB"
        yield Finding("note", "memory", f"{shown}; the container may use {limit}, and is killed (-9) above it")
    else:
        yield Finding("ok", "memory", shown)


def on_disks(facts: Facts) -> Iterator[Finding]:
    """Room where runs, caches and temporary files go."""
    for disk in facts.machine.disks:
        yield _on_disk(disk)


def _on_disk(disk: Disk) -> Finding:
    topic, shown = "disk", f"{disk.purpose} ({disk.path}): {disk.free_bytes / _GB:,.3g} GB free"
    place = {
        "runs": "--output_dir",
        "Hub cache": "HF_HOME",
        "prepared data": "HF_RECIPES_CACHE",
        "temporary files": "TMPDIR",
    }.get(disk.purpose, "another disk")
    if not disk.writable:
        return Finding("error", topic, f"{disk.purpose} ({disk.path}): not writable by this user", f"set {place}")
    if disk.free_bytes < _FULL_BYTES:
        return Finding("error", topic, shown, f"make room, or set {place} to a larger disk")
    if disk.free_bytes < _TIGHT_BYTES:
        return Finding(
            "note", topic, shown + ", which one checkpoint of a 7B model (full: 84 GB, adapter: under 1 GB) may fill"
        )
    return Finding("ok", topic, shown)


def on_shared_memory(facts: Facts) -> Iterator[Finding]:
    """/dev/shm, through which data-loading workers and NCCL talk."""
    size, free = facts.machine.shm_bytes, facts.machine.shm_free_bytes
    if size is None or free is None:
        if facts.machine.system == "Linux":
            yield Finding("warning", "shared memory", "there is no /dev/shm", "mount a tmpfs there")
        return
    cure = "docker run --shm-size=16g (Kubernetes: an emptyDir of medium Memory at /dev/shm)"
    if size < _SHM_BYTES:
        told = f"/dev/shm holds {size / _GB:.2g} GB: dataloader workers and NCCL end with a bus error when it is full"
        yield Finding("warning", "shared memory", told, cure)
    elif free < 0.1 * size:
        told = f"/dev/shm has {free / _GB:.2g} of {size / _GB:.2g} GB left"
        yield Finding("warning", "shared memory", told, "remove what killed runs left there (ls -la /dev/shm)")
    else:
        yield Finding("ok", "shared memory", f"/dev/shm holds {size / _GB:.3g} GB")


def on_limits(facts: Facts) -> Iterator[Finding]:
    """ulimits that a run meets late."""
    limits, fine = facts.machine.limits, True
    if (files := limits.get("nofile")) is not None and files < _FILES:
        fine = False
        yield Finding(
            "warning",
            "limits",
            f"{files} open files at most: many shards or workers exceed it",
            f"ulimit -n {_FILES * 16}",
        )
    if (locked := limits.get("memlock")) is not None and locked < _LOCKED_BYTES and facts.driver.devices > 1:
        fine = False
        told = f"{locked >> 10} KB of locked memory at most: RDMA (InfiniBand) needs all of it"
        yield Finding("note", "limits", told, "ulimit -l unlimited (docker run --ulimit memlock=-1)")
    if (processes := limits.get("nproc")) is not None and processes < _PROCESSES:
        fine = False
        told = f"{processes} processes and threads at most"
        yield Finding("warning", "limits", told, f"ulimit -u {_PROCESSES * 8}")
    if fine and limits:
        files = limits.get("nofile")
        yield Finding("ok", "limits", f"{'unlimited' if files is None else f'{files:,}'} open files")


def on_cores(facts: Facts) -> Iterator[Finding]:
    """Cores, the container's share of them, and threads."""
    machine = facts.machine
    quota = machine.cpu_quota
    usable = machine.cores if quota is None else min(machine.cores, quota)
    shown = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    if quota is not None and quota < machine.cores:
        shown += f", of which the container may use {quota:g}"
    threads = facts.variables.get("OMP_NUM_THREADS", "")
    if threads and not _THREADS.fullmatch(threads):
        yield Finding(
            "warning",
            "cores",
            f"{shown}; OMP_NUM_THREADS={threads[:40]!r} is no number of threads, and is ignored",
            f"OMP_NUM_THREADS={max(1, int(usable))}",
        )
    elif threads.isdecimal() and int(threads) > usable + 0.5:
        yield Finding(
            "warning",
            "cores",
            f"{shown}; OMP_NUM_THREADS={threads} makes threads wait for each other",
            f"OMP_NUM_THREADS={max(1, int(usable))} (divided by the ranks of this machine)",
        )
    elif threads.isdecimal() and int(threads) == 1 < usable and not facts.driver.devices:
        yield Finding(
            "note",
            "cores",
            f"{shown}; OMP_NUM_THREADS=1 leaves one thread to tools other than this one",
            f"OMP_NUM_THREADS={int(usable)}",
        )
    elif quota is not None and quota < machine.cores and not threads:
        yield Finding(
            "warning",
            "cores",
            f"{shown}: torch starts a thread for every core, and they are throttled",
            f"OMP_NUM_THREADS={max(1, int(quota))}",
        )
    else:
        yield Finding("ok", "cores", shown)


def on_text(facts: Facts) -> Iterator[Finding]:
    """Encoding and clock."""
    machine = facts.machine
    if machine.encoding.lower().replace("-", "") not in ("utf8", "cp65001"):
        yield Finding(
            "warning",
            "locale",
            f"files are read as {machine.encoding} by default, and data is UTF-8",
            "PYTHONUTF8=1 or LANG=C.UTF-8",
        )
    behind = machine.newest_file - machine.clock
    if machine.clock < _EARLIEST_CLOCK or behind > _CLOCK_SLACK_SECONDS:
        now = time.strftime("%Y-%m-%d", time.gmtime(machine.clock))
        yield Finding(
            "warning",
            "clock",
            f"the clock says {now}, which is before the files of this installation",
            "set it: certificates are refused, and events are ordered by it",
        )
