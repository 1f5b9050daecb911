"""Does a step get through more tokens with more ranks? Weak and strong scaling of DDP and FSDP2 over gloo on the CPU.

    python benchmarks/scaling.py [--ranks 1 2 4] [--rounds 3] [--steps 4] [--json FILE]

Weak: each rank has `--rows` rows, so the global batch grows. Strong: `--global_rows` rows are shared out. Each round
runs every number of ranks once, one after the other (A B C A B C), one thread a rank, and each is compared with one
rank of the same round; the table gives medians over rounds. Ranks beyond the machine's cores take turns: their tokens a
wall second say nothing about a machine that has a core for each. Tokens a CPU second tell what the strategy itself
costs, since waiting takes no CPU time, and other work on the machine spoils them least.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]
TOKENS, WARMING = 128, 2
SIZES = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4}


@dataclass(frozen=True)
class Run:
    """One block of steps: wall seconds of the slowest rank, CPU seconds of all."""

    strategy: str
    kind: str
    ranks: int
    round: int
    tokens: int
    wall_seconds: float
    cpu_seconds: float

    @property
    def per_wall(self) -> float:
        return self.tokens / self.wall_seconds

    @property
    def per_cpu(self) -> float:
        return self.tokens / self.cpu_seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed, after two others")
    parser.add_argument("--rows", type=int, default=4, help="of a rank, for weak scaling")
    parser.add_argument("--global_rows", type=int, default=8, help="of all ranks, for strong scaling")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the runs there")
    options = parser.parse_args()
    import torch
    import torch.distributed.fsdp
    import transformers.models.llama.modeling_llama  # noqa: F401 - once, for all ranks

    torch.set_num_threads(1)
    runs = []
    for number in range(options.rounds):
        for strategy in STRATEGIES:
            for kind in ("weak", "strong"):
                for ranks in options.ranks:
                    rows = options.rows if kind == "weak" else options.global_rows // ranks
                    found = measure(strategy, ranks, rows, options.steps)
                    runs.append(Run(strategy, kind, ranks, number, ranks * rows * TOKENS * options.steps, *found))
                    print(runs[-1], file=sys.stderr, flush=True)
    print(table(runs))
    print(f"\n{os.cpu_count()} cores; other work at the end: load {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    return 0


def measure(strategy: str, ranks: int, rows: int, steps: int) -> tuple[float, float]:
    """Wall and CPU seconds of so many steps, on ranks forked from this process."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    forking = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        order = (strategy, ranks, rows, steps, port, folder)
        processes = [forking.Process(target=rank, args=(place, *order)) for place in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"{strategy} on {ranks} ranks failed.")
        times = [json.loads(Path(folder, f"{place}.json").read_text()) for place in range(ranks)]
    return max(wall for wall, _ in times), sum(cpu for _, cpu in times)


def rank(place: int, strategy: str, ranks: int, rows: int, steps: int, port: int, folder: str) -> None:
    """One rank: some steps to warm up, then those that are timed."""
    import torch
    import torch.distributed as dist
    from tiny_models import make_tiny_llama

    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=place, world_size=ranks)
    model = make_tiny_llama(1024, **SIZES)
    model.config.use_cache = False
    wrapped = STRATEGIES[strategy](model) if ranks > 1 else model
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4)
    ids = torch.randint(1024, (rows, TOKENS), generator=torch.Generator().manual_seed(place))

    def step() -> None:
        wrapped(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARMING):
        step()
    dist.barrier()
    began, spent = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    dist.barrier()
    found = [time.perf_counter() - began, time.process_time() - spent]
    Path(folder, f"{place}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def ddp(model: Any) -> Any:
    """Whole on every rank."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


def fsdp(model: Any) -> Any:
    """Cut over the ranks, a layer at a time."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


STRATEGIES: dict[str, Callable[[Any], Any]] = {"ddp": ddp, "fsdp": fsdp}


def table(runs: list[Run]) -> str:
    """Markdown: medians over rounds, and of one rank's figure in the same round."""
    lines = [
        "| strategy | scaling | ranks | tokens a CPU second | of one rank's | tokens a wall second | of one rank's |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for strategy, kind, ranks in dict.fromkeys((run.strategy, run.kind, run.ranks) for run in runs):
        mine = {run.round: run for run in runs if (run.strategy, run.kind, run.ranks) == (strategy, kind, ranks)}
        least = min(run.ranks for run in runs)
        one = {run.round: run for run in runs if (run.strategy, run.kind, run.ranks) == (strategy, kind, least)}
        parts = [strategy, kind, str(ranks)]
        for figure in (lambda run: run.per_cpu, lambda run: run.per_wall):
            parts.append(f"{statistics.median(map(figure, mine.values())):,.0f}")
            parts.append(f"{statistics.median(figure(mine[each]) / figure(one[each]) for each in mine):.2f}")
        lines.append(f"| {' | '.join(parts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
