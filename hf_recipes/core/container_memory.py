"""What a container may use of the machine's memory, as Linux tells it (cgroup 2 and 1)."""

from __future__ import annotations

from pathlib import Path

# Limit, use, and where among other figures stands how much of the use is cached files, given back when asked for.
CGROUP_FILES = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        "total_inactive_file",
    ),
)


def container_memory() -> list[tuple[int, int | None]]:
    """Limit and use, in bytes, of every control group that has a limit; the use, without cached files that nobody has
    used lately (what ``kubectl top`` calls the working set), is None where it is not told."""
    pairs = [(_number(limit), _working_set(used, cached)) for limit, used, cached in CGROUP_FILES]
    return [(limit, used) for limit, used in pairs if limit is not None]


def _working_set(file: Path, cached: str) -> int | None:
    used = _number(file)
    if used is None:
        return None
    try:
        stat = dict(line.split() for line in file.with_name("memory.stat").read_text(encoding="utf-8").splitlines())
        return max(0, used - int(stat.get(cached, 0)))
    except (OSError, ValueError):
        return used


def free_memory_bytes() -> int:
    """Memory that this process may still take: what the machine has available, or its container leaves."""
    import psutil

    left = [max(0, limit - used) for limit, used in container_memory() if used is not None]
    return min([psutil.virtual_memory().available, *left])


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such file, or `max`
        return None
