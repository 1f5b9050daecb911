"""NVIDIA's driver and who has its devices open, read from the kernel's files: no program is started."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from hf_recipes.doctor.environment.facts import Driver, Holder

_DEVICE = re.compile(r"^/dev/nvidia(\d+)$")
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")


def look_at_driver(proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> Driver:
    """Devices, version and holders; empty where there is no NVIDIA device."""
    devices = [path for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    if not devices:
        return Driver()
    version = None
    with suppress(OSError):
        found = _VERSION.search((proc / "driver/nvidia/version").read_text(encoding="utf-8", errors="replace"))
        version = found.group(1) if found else None
    return Driver(len(devices), version, _holders(proc))


def _holders(proc: Path) -> tuple[Holder, ...]:
    """Processes, as far as this user may see them, that have a device open; this one and its parents left out."""
    held: dict[int, set[str]] = defaultdict(set)
    for place in proc.glob("[0-9]*/fd"):
        with suppress(OSError):
            for link in place.iterdir():
                with suppress(OSError):
                    if device := _DEVICE.match(str(link.readlink())):
                        held[int(place.parent.name)].add(device.group(1))
    mine = {os.getpid(), os.getppid()}
    return tuple(_holder(proc, pid, devices) for pid, devices in sorted(held.items()) if pid not in mine)


def _holder(proc: Path, pid: int, devices: set[str]) -> Holder:
    name, seconds = "?", 0.0
    with suppress(OSError):
        name = (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
        seconds = max(0.0, time.time() - (proc / str(pid)).stat().st_ctime)
    return Holder(pid, name, tuple(sorted(devices, key=int)), seconds)
