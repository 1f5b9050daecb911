"""Asks the operating system and the container what a run will find. Imports neither torch nor transformers."""

from __future__ import annotations

import importlib.util
import locale
import math
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from hf_recipes.core.cache import cache_directory
from hf_recipes.core.container_memory import container_memory
from hf_recipes.core.cores import usable_cores
from hf_recipes.core.files import expanded
from hf_recipes.doctor.environment.facts import Builders, Disk, Lock, Machine

_CPU_FILES = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
_SHM = Path("/dev/shm")


def look_at_machine() -> Machine:
    """Cores, memory, limits and places to write to, as they are now."""
    import psutil

    memory = psutil.virtual_memory()
    limits = [limit for limit, _ in container_memory() if limit < memory.total]
    shm = shutil.disk_usage(_SHM) if _SHM.is_dir() else None
    return Machine(
        system=platform.system(),
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        cores=usable_cores(),
        cpu_quota=_cpu_quota(),
        ram_bytes=memory.total,
        ram_free_bytes=memory.available,
        container_ram_bytes=min(limits, default=None),
        shm_bytes=shm.total if shm else None,
        shm_free_bytes=shm.free if shm else None,
        limits=_limits(),
        disks=_disks(),
        encoding=locale.getpreferredencoding(False),
        clock=time.time(),
        newest_file=Path(__file__).stat().st_mtime,
    )


def _cpu_quota() -> float | None:
    """Cores that the container may use: ``cpu.max`` of cgroup 2 holds quota and period, cgroup 1 two files."""
    with suppress(OSError, ValueError, IndexError):
        quota, period = _CPU_FILES[0].read_text().split()[:2]
        return float(quota) / float(period)
    with suppress(OSError, ValueError):
        quota_us = float(_CPU_FILES[1].read_text())
        period_us = float(_CPU_FILES[1].with_name("cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    return None


def _limits() -> dict[str, int | None]:
    if importlib.util.find_spec("resource") is None:  # Windows
        return {}
    import resource

    found: dict[str, int | None] = {}
    for name in ("nofile", "memlock", "nproc"):
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        found[name] = None if soft == resource.RLIM_INFINITY else soft
    return found


def _disks() -> tuple[Disk, ...]:
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    places = (
        ("runs", Path.cwd() / "runs"),
        ("Hub cache", expanded(hub)),
        ("prepared data", cache_directory()),
        ("temporary files", Path(tempfile.gettempdir())),
    )
    return tuple(_disk(purpose, path) for purpose, path in places)


def _disk(purpose: str, path: Path) -> Disk:
    """Of the nearest directory above that is there: that is where it would be made."""
    there = next((place for place in (path, *path.parents) if place.is_dir()), Path("/"))
    usage = shutil.disk_usage(there)
    return Disk(purpose, str(path), usage.free, usage.total, os.access(there, os.W_OK))


def look_at_builders(now: float | None = None) -> Builders:
    """What compiles operations at first use, and the locks that a killed build left."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return Builders(
        compiler=any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "g++", "clang++", "c++")),
        ninja=shutil.which("ninja") is not None or importlib.util.find_spec("ninja") is not None,
        nvcc=shutil.which("nvcc") is not None or Path("/usr/local/cuda/bin/nvcc").is_file(),
        python_headers=headers.is_file(),
        locks=_locks(time.time() if now is None else now),
    )


def _locks(now: float) -> tuple[Lock, ...]:
    """Locks of torch.utils.cpp_extension: ``lock`` in ``$TORCH_EXTENSIONS_DIR/OPERATION`` or, by default, in a folder
    for each version of Python and CUDA."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    place = (
        Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"
    )
    found = []
    for pattern in ("*/lock", "*/*/lock"):
        for file in place.glob(pattern):
            with suppress(OSError):
                age = max(0.0, now - file.stat().st_mtime)
                found.append(Lock(file.parent.name, str(file), age))
    return tuple(sorted(found, key=lambda lock: -lock.age_seconds if math.isfinite(lock.age_seconds) else 0.0))
