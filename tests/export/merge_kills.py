"""Run as a script: a merge killed by SIGKILL at chosen moments, each in a fork of its own; JSON of what was left.

    python merge_kills.py ADAPTER OUTPUT SAMPLES [overwrite]

A moment is a call that touches the disk: a write, a copy, a sync, a rename, a removal.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from hf_recipes.core import tensor_io
from hf_recipes.export import companions, staging, stream
from hf_recipes.export import merge as merging
from hf_recipes.export.proofs import tensors as _preload  # noqa: F401

moments = 0


def counted(module: object, name: str, kill_at: int) -> None:
    plain = getattr(module, name)

    def call(*args, **kwargs):
        global moments
        if moments == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        moments += 1
        return plain(*args, **kwargs)

    setattr(module, name, call)


def merge(adapter: str, output: str, overwrite: bool, kill_at: int) -> None:
    for module, name in (
        (stream, "write_from"),
        (stream, "copy_range"),
        (tensor_io.os, "fsync"),
        (staging.shutil, "rmtree"),
        (staging.shutil, "copyfile"),
        (companions, "write_json"),
        (merging, "write_json"),
        (Path, "rename"),
        (Path, "mkdir"),
    ):
        counted(module, name, kill_at)
    merging.merge_adapter(adapter, output=output, dtype="bf16", threads=1, overwrite=overwrite)


def forked(action: Callable[[], None]) -> int:
    """Run it in a fork; the wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(3)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def count_moments(adapter: str, output: str, overwrite: bool) -> int:
    reader, writer = os.pipe()

    def action() -> None:
        merge(adapter, output, overwrite, -1)
        os.write(writer, str(moments).encode())

    assert forked(action) == 0
    return int(os.read(reader, 20))


def content(directory: Path) -> dict[str, int] | None:
    """A mark of every file of weights and settings; None where there is no directory."""
    if not directory.is_dir():
        return None
    files = [file for file in directory.rglob("*") if file.is_file() and file.name != "hf_recipes_merge.json"]
    return {file.name: hash(file.read_bytes()) for file in files}


def main() -> None:
    adapter, output, samples = sys.argv[1], sys.argv[2], int(sys.argv[3])
    overwrite = len(sys.argv) > 4
    place = Path(output)
    if overwrite:
        place.mkdir()
        (place / "config.json").write_text("{}")
    old = content(place)
    total = count_moments(adapter, output, overwrite)
    whole = content(place)
    found = []
    chosen = range(total) if samples >= total else sorted(random.Random(0).sample(range(total), samples))
    for moment in chosen:
        for leftover in place.parent.glob(f"*{place.name}*"):
            shutil.rmtree(leftover)
        if overwrite:
            place.mkdir()
            (place / "config.json").write_text("{}")
        status = forked(lambda moment=moment: merge(adapter, output, overwrite, moment))
        left = content(place)
        state = "absent" if left is None else "old" if left == old else "whole" if left == whole else "broken"
        again = forked(lambda: merging.merge_adapter(adapter, output=output, dtype="bf16", overwrite=True))
        clean = content(place) == whole and [path.name for path in place.parent.glob(f"*{place.name}*")] == [place.name]
        found.append(
            {"moment": moment, "killed": status == signal.SIGKILL, "state": state, "again": again == 0 and clean}
        )
    print(json.dumps({"moments": total, "found": found}))


if __name__ == "__main__":
    main()
