"""How long is a step over a slow link, by the size of the buckets that gradients are sent in?

    python benchmarks/slow_link.py [--delays 0.1 10] [--mbit 200] [--buckets 0.1 0.5 2 8] [--zero] [--json FILE]

Two machines made of network namespaces (tests/machines; needs root), one rank each over gloo, joined by a wire of so
many Mbit/s and milliseconds each way. A stack of linear layers is trained by DDP (`bucket_cap_mb`) and, with --zero, by
DeepSpeed's ZeRO-2 (`reduce_bucket_size`). Prints a Markdown table: the shortest step, messages a step, and the
computing time alone. Fewer messages help by what each costs beside its bytes, which grows with the delay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "machines")]
LAYERS, WIDTH, ROWS = 64, 180, 8  # 2.1 M parameters, 8.3 MB of gradients in fp32
PORT = 29511


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delays", type=float, nargs="+", default=[0.1, 10.0], help="milliseconds each way")
    parser.add_argument("--mbit", type=float, default=200.0, help="of the wire (default: 200)")
    parser.add_argument("--buckets", type=float, nargs="+", default=[0.1, 0.5, 2.0, 8.0], help="MB")
    parser.add_argument("--steps", type=int, default=8, help="timed, after 3 others (default: 8)")
    parser.add_argument("--zero", action="store_true", help="ZeRO-2 too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--rank-of", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return rank(options)
    rows = measure(options)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One run of two ranks for each engine and delay; a row for each bucket."""
    from hosts import hosts
    from slow_wire import WIRE, slow_wire, wire_address

    rows = []
    for engine in ["ddp", "zero2"] if options.zero else ["ddp"]:
        for delay in options.delays:
            with (
                tempfile.TemporaryDirectory() as folder,
                hosts(2) as both,
                slow_wire(*both, delay / 1e3, options.mbit * 1e6 / 8),
            ):
                command = [sys.executable, __file__, "--rank-of", engine, "--steps", str(options.steps)]
                command += ["--json", f"{folder}/rows.json", "--buckets", *map(str, options.buckets)]
                environment = {
                    **os.environ,
                    "GLOO_SOCKET_IFNAME": WIRE,
                    "MASTER_ADDR": wire_address(both[0]),
                    "MASTER_PORT": str(PORT),
                    "WORLD_SIZE": "2",
                    "LOCAL_RANK": "0",
                    "OMP_NUM_THREADS": "1",
                    "DS_ACCELERATOR": "cpu",
                }
                ranks = [
                    host.start(command, env={**environment, "RANK": str(number)}, stdout=subprocess.DEVNULL)
                    for number, host in enumerate(both)
                ]
                if any([process.wait() for process in ranks]):  # noqa: C419 - all of them
                    raise SystemExit(f"{engine} at {delay} ms failed.")
                found = json.loads(Path(folder, "rows.json").read_text())
            rows += [{"engine": engine, "delay_ms": delay, "mbit": options.mbit, **row} for row in found]
            for row in found:
                print(f"{engine} {delay:g} ms: {row}", file=sys.stderr, flush=True)
    return rows


def rank(options: argparse.Namespace) -> int:
    """One rank: the same model with one bucket size after the other."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows = []
    for megabytes in options.buckets:
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        alone = [timed(lambda model=model: model(torch.ones(ROWS, WIDTH)).mean().backward()) for _ in range(3)]
        step, sent = ENGINES[options.rank_of](model, megabytes)
        times = [timed(step) for _ in range(options.steps + 3)][3:]
        longest: list[Any] = [None, None]
        dist.all_gather_object(longest, times)
        seconds = min(max(both) for both in zip(*longest, strict=True))
        rows.append({"bucket_mb": megabytes, "messages": sent(), "step_s": seconds, "compute_s": min(alone)})
    if dist.get_rank() == 0:
        options.json.write_text(json.dumps(rows))
    dist.destroy_process_group()
    return 0


def ddp(model: Any, megabytes: float) -> tuple[Any, Any]:
    """A step by torch's DDP, and how many all-reduces it makes."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(model, bucket_cap_mb=megabytes, gradient_as_bucket_view=True)
    counts = [0]

    def counted(state, bucket):  # torch reads the annotations, and takes none as strings
        counts[-1] += 1
        return allreduce_hook(state, bucket)

    wrapped.register_comm_hook(None, counted)

    def step() -> None:
        counts.append(0)
        wrapped(torch.ones(ROWS, WIDTH)).mean().backward()

    return step, lambda: counts[-1]


def zero2(model: Any, megabytes: float) -> tuple[Any, Any]:
    """A step by DeepSpeed's ZeRO-2, and how many collectives it makes."""
    import deepspeed
    import torch
    import torch.distributed as dist

    elements = int(megabytes * 1e6 / 4)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=list(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": ROWS,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": True}},
            "zero_optimization": {
                "stage": 2,
                "reduce_bucket_size": elements,
                "allgather_bucket_size": elements,
                "overlap_comm": False,
            },
        },
    )
    counts = [0]
    for name in ("all_reduce", "reduce", "reduce_scatter_tensor", "all_gather", "all_gather_into_tensor", "broadcast"):
        setattr(dist, name, _counting(getattr(dist, name), counts))

    def step() -> None:
        counts.append(0)
        engine.backward(engine(torch.ones(ROWS, WIDTH)).mean())
        engine.step()

    return step, lambda: counts[-1]


def _counting(function: Any, counts: list[int]) -> Any:
    def counted(*arguments: Any, **named: Any) -> Any:
        counts[-1] += 1
        return function(*arguments, **named)

    return counted


ENGINES = {"ddp": ddp, "zero2": zero2}


def timed(action: Any) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| engine | each way | bucket | messages | step | computing |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(
            f"| {row['engine']} | {row['delay_ms']:g} ms | {row['bucket_mb']:g} MB | {row['messages']} | "
            f"{row['step_s'] * 1e3:.0f} ms | {row['compute_s'] * 1e3:.0f} ms |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
