"""The processor cores that are this process's own to use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores this process may run on: of its affinity mask, which schedulers and containers set, where the system has
    one; else all of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
