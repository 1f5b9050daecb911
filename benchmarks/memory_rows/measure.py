"""Measure the peak memory of one row in this process: `python -m memory_rows.measure ROW.json OUT.json` (in
`benchmarks/`), on several ranks under torchrun. `measure_apart` does it in a fresh process."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memory_rows.rows import Row

BENCHMARKS = Path(__file__).resolve().parents[1]
# Peak resident memory is told in KiB on Linux.
_KIB = 1024


def measure_apart(row: Row, *, timeout: float = 1200) -> dict[str, Any]:
    """Measure a row in processes of its own, as many as it has ranks.

    A run on one rank is forked from this process, which imports what it needs once; call `prepare` before anything is
    imported.

    Returns:
        Of the fullest rank: ``peak`` (bytes of live tensors), ``phase`` (of the peak), ``phases`` (the highest point of
        each), ``ends`` (what is alive when each last ends), ``weights``, ``gradients``, ``optimizer`` (bytes),
        ``rss`` (growth of resident memory from before the model was built), ``seconds`` (CPU).

    Raises:
        RuntimeError: the run failed; with the end of what it said.
    """
    with tempfile.TemporaryDirectory(prefix="memory_row_") as directory:
        run = _forked if row.ranks == 1 else _launched
        code = run(row, Path(directory), timeout)
        ranks = [json.loads(each.read_text()) for each in Path(directory).glob("out.*")]
        if code or len(ranks) < row.ranks:
            raise RuntimeError(f"{row.name}: {(Path(directory) / 'said').read_text()[-2000:]}")
    return max(ranks, key=lambda rank: rank["peak"])


def prepare() -> None:
    """Set the environment that runs are measured in; before torch is imported."""
    os.environ.update(_environment(Row("")))


def _forked(row: Row, directory: Path, timeout: float) -> int:
    _preload()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            said = os.open(directory / "said", os.O_WRONLY | os.O_CREAT)
            os.dup2(said, 1)
            os.dup2(said, 2)
            (directory / "out.0").write_text(json.dumps(measure(row)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _preload() -> None:
    import torch

    torch.set_num_threads(1)  # a process that has started threads cannot be forked
    import bitsandbytes  # noqa: F401

    import hf_recipes.training.trainer  # noqa: F401


def _launched(row: Row, directory: Path, timeout: float) -> int:
    job = directory / "row.json"
    job.write_text(json.dumps(asdict(row)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(row.ranks)]
    command += ["-m", "memory_rows.measure", str(job), str(directory / "out")]
    with open(directory / "said", "w") as said:
        done = subprocess.run(command, env=_environment(row), stdout=said, stderr=said, timeout=timeout, check=False)
    return done.returncode


def _environment(row: Row) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
    if row.sharding in ("none", "ddp"):
        environment["ACCELERATE_USE_CPU"] = "true"
    return environment


def measure(row: Row) -> dict[str, Any]:
    """Measure a row in this process, which must be fresh: the model is built, then trained under the profiler."""
    import torch
    from memory_rows import build, peaks

    torch.set_num_threads(1)
    sharded = row.sharding not in ("none", "ddp")
    if sharded:
        _shard_as_on_gpus()
    before_rss = _rss()
    started = time.process_time()
    # What the trainer replaces must be made under the profiler, which sees releases of nothing older: a model that is
    # cut into shares or moved to the rank's own device (several ranks: to "cpu:0", which makes copies), adapters over a
    # quantised base (TRL casts them).
    base = None if row.ranks > 1 else build.build_base(row)
    model = build.attach(row, base) if base is not None and row.method != "qlora" else None
    gc.collect()
    built = model if model is not None else base
    start = 0 if built is None else tensor_bytes([*built.parameters(), *built.buffers()])
    states: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as output, peaks.watching() as seen:
        if model is None:
            model = build.attach(row, build.build_base(row) if base is None else base)
        trainer = build.build_trainer(row, model, Path(output), peaks.mark)
        trainer.add_callback(_states_callback(trainer, states))
        trainer.train()
    by_phase = {phase: start + size for phase, size in seen.peaks.items()}
    training = {phase: by_phase[phase] for phase in TRAINING_PHASES if phase in by_phase}
    phase = max(training, key=training.__getitem__)
    return {
        "name": row.name,
        "row": asdict(row),
        "peak": training[phase],
        "phase": phase,
        "phases": by_phase,
        "ends": {each: start + size for each, size in seen.ends.items()},
        **states,
        "rss": _rss() - before_rss,
        "seconds": round(time.process_time() - started, 1),
    }


TRAINING_PHASES = ("forward", "backward", "optimizer_step")


def tensor_bytes(tensors: Any) -> int:
    """Bytes of the storages of `tensors`, each once; of a sharded one this rank's share."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        for each in (own, *_quantization_state(own)):
            sizes[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
    return sum(sizes.values())


def _quantization_state(tensor: Any) -> list[Any]:
    state = getattr(tensor, "quant_state", None)
    found = []
    while state is not None:
        found += [each for each in (state.absmax, state.code, state.offset) if each is not None]
        state = state.state2
    return found


def _states_callback(trainer: Any, states: dict[str, int]) -> Any:
    from transformers import TrainerCallback

    class States(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            parameters = list(trainer.model.parameters())
            states["weights"] = tensor_bytes([*parameters, *trainer.model.buffers()])
            states["gradients"] = tensor_bytes([each.grad for each in parameters if each.grad is not None])

        def on_step_end(self, *_: Any, **__: Any) -> None:
            import torch

            held = getattr(trainer.optimizer, "state", {})
            kept = [each for state in held.values() for each in state.values() if isinstance(each, torch.Tensor)]
            states["optimizer"] = tensor_bytes(kept)

    return States()


def _rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def _shard_as_on_gpus() -> None:
    """Let accelerate shard over CPU ranks: it does so for devices only."""
    from accelerate.state import DistributedType, PartialState

    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    os.environ.pop("ACCELERATE_USE_CPU", None)
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)


def main() -> None:
    job, out = sys.argv[1:3]
    values = json.loads(Path(job).read_text())
    found = measure(Row(**{**values, "targets": tuple(values["targets"])}))
    Path(f"{out}.{os.environ.get('RANK', '0')}").write_text(json.dumps(found))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    main()
