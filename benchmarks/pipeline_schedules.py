"""What each stage of a pipeline keeps for the backward pass, by GPipe and by 1F1B: the peak over a step, counted from
the tensors that autograd saves, each storage once, weights left out.

    python benchmarks/pipeline_schedules.py

A random Llama of eight layers in fp32 on forked CPU ranks over gloo. Bytes are counted and nothing is timed, so other
work on the machine changes nothing. Needs 2 GB of memory.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from hf_recipes.core.versions import stack_versions
from hf_recipes.pipeline.cut import bubble, cut_layers
from hf_recipes.pipeline.engine import PipelineEngine
from hf_recipes.pipeline.ranks import arrange_ranks
from hf_recipes.pipeline.stage import Stage
from hf_recipes.pipeline.stage_model import drop_others, fill_part, reserve_part, skeleton
from hf_recipes.training.loss import supervised_cross_entropy

CONFIG = LlamaConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
)
ROWS, TOKENS = 2, 256
CASES = [(2, 4), (2, 8), (4, 4), (4, 8), (4, 16)]  # stages, micro-batches


class Kept:
    """Bytes that autograd holds now, and the most it has held."""

    def __init__(self, weights: set[int]) -> None:
        self._weights = weights
        self._holders: dict[int, int] = {}
        self.now = self.peak = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Saved(self, tensor), lambda saved: saved.tensor):
            yield

    def take(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._weights:
            return
        self._holders[storage.data_ptr()] = self._holders.get(storage.data_ptr(), 0) + 1
        if self._holders[storage.data_ptr()] == 1:
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def leave(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._weights:
            return
        self._holders[storage.data_ptr()] -= 1
        if not self._holders[storage.data_ptr()]:
            self.now -= storage.nbytes()


class _Saved:
    def __init__(self, kept: Kept, tensor: Tensor) -> None:
        self.kept, self.tensor = kept, tensor
        kept.take(tensor)

    def __del__(self) -> None:
        self.kept.leave(self.tensor)


class CountedStage(Stage):
    """A stage that counts what its forward passes leave."""

    kept: Kept

    def forward(self, given: Tensor) -> Tensor:
        with self.kept.counted():
            return super().forward(given)

    def summed_loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        with self.kept.counted():
            return super().summed_loss(hidden, labels)


def measure(directory: Path, stages: int, micro_batches: int, schedule: str) -> int:
    """The peak of this rank's stage, in bytes."""
    ranks = arrange_ranks(stages, 1, "cpu")
    part = cut_layers(CONFIG.num_hidden_layers, stages)[ranks.stage]
    model = skeleton(CONFIG, torch.float32)
    reserve_part(model, part)
    drop_others(model, part)
    fill_part(model, directory)
    stage = CountedStage(model, part, torch.float32, None, supervised_cross_entropy).train()
    stage.kept = Kept({each.untyped_storage().data_ptr() for each in model.parameters()})
    engine = PipelineEngine(stage, ranks, schedule, micro_batches, ROWS, torch.device("cpu"))
    ids = torch.randint(3, 4000, (engine.step_rows, TOKENS), generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        engine.train({"input_ids": ids, "labels": ids}, ids.numel())
    assert stage.kept.now == 0, "something was kept after the step"
    return stage.kept.peak


def run(directory: Path, stages: int, micro_batches: int, schedule: str) -> list[int]:
    """The peaks of all stages, from forked ranks."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    children = []
    for rank in range(stages):
        if (child := os.fork()) == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(stages), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            dist.init_process_group("gloo")
            peak = measure(directory, stages, micro_batches, schedule)
            (directory / f"peak{rank}").write_text(str(peak))
            dist.destroy_process_group()
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    return [int((directory / f"peak{rank}").read_text()) for rank in range(stages)]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    told: Any = stack_versions()
    print(f"torch {told.get('torch')}, transformers {told.get('transformers')}; {ROWS} × {TOKENS} tokens a micro-batch")
    print("| stages | micro-batches | idle (theory) | GPipe, MiB by stage | 1F1B, MiB by stage |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(CONFIG).save_pretrained(folder)
        for stages, micro_batches in CASES:
            peaks = [run(Path(folder), stages, micro_batches, name) for name in ("gpipe", "1f1b")]
            words = [" ".join(f"{peak / 2**20:.0f}" for peak in each) for each in peaks]
            print(f"| {stages} | {micro_batches} | {bubble(stages, micro_batches):.0%} | {words[0]} | {words[1]} |")


if __name__ == "__main__":
    main()
