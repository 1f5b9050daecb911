"""What a collective really puts on the wire: the loopback interface's own count, in a network namespace of its own.

Bytes of a rank over bytes of the whole tensor, to hold `ring_bytes` against. Needs root.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

WHOLE_BYTES, TIMES, QUIET_SECONDS = 8 << 20, 3, 0.5
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def on_the_wire(ranks: int) -> dict[str, float]:
    """Collective → bytes that a rank sent (the mean of all) over the bytes of the whole tensor, over gloo.

    Args:
        ranks: processes of one machine.

    Raises:
        RuntimeError: no network namespace may be made here.
    """
    inside = f"ip link set lo up && exec {sys.executable} -W ignore {__file__} {ranks}"
    done = subprocess.run(["unshare", "-n", "sh", "-c", inside], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError("no network namespace could be made here: it needs root.")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    ranks = int(sys.argv[1])
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    import torch.distributed  # noqa: F401 - once, for all ranks

    children = []
    for number in range(ranks):
        if not (child := os.fork()):
            rank(number, ranks, port)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def rank(number: int, ranks: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=number, world_size=ranks)
    whole = torch.ones(WHOLE_BYTES // 4)
    part = torch.ones(WHOLE_BYTES // 4 // ranks)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
    }
    found = {}
    for name, call in calls.items():
        call()  # makes its connections
        before = _quiet_count()
        for _ in range(TIMES):
            call()
        found[name] = (_quiet_count() - before) / TIMES / ranks / WHOLE_BYTES
    if number == 0:
        print(json.dumps(found), flush=True)


def _quiet_count() -> int:
    """Bytes sent over the loopback interface so far, once all ranks have come here and nothing is under way."""
    import torch.distributed as dist

    dist.barrier()
    time.sleep(QUIET_SECONDS)
    lines = Path("/proc/net/dev").read_text().splitlines()
    (loopback,) = (line.partition(":")[2].split() for line in lines if line.strip().startswith("lo:"))
    dist.barrier()
    return int(loopback[8])


if __name__ == "__main__":
    sys.exit(main())
