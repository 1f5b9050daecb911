"""On each rank: write down every collective of torch.distributed, by optimizer step.

The dispatcher's operators are watched (``c10d::*`` and ``_c10d_functional::*``), which Python, DDP's reducer in C++,
FSDP2, DTensor and DeepSpeed all go through. torch's flight recorder would tell what gloo did instead: it has no
reduce-scatter and makes one of an all-reduce, and keeps no sends between two ranks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

# Operator → (the collective, which argument holds what is counted: the whole of it, which a shard is a part of).
_OPERATORS = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "gather_": ("gather", 0),
    "scatter_": ("scatter", 1),
    "alltoall_base_": ("all_to_all", 1),
    "alltoall_": ("all_to_all", 1),
    "send": ("send", 0),
}
_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
_SILENT = {"recv_", "barrier", "monitored_barrier_"}  # the sender is counted; a barrier has no bytes to speak of


class Recorder(TorchDispatchMode):
    """Fills `steps`: a list of messages for each step begun, each ``{collective, bytes, elements, dtype, ranks}``."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[dict[str, Any]]] = []
        self.batches: list[list[int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, torch.distributed.tensor.DTensor) for each in types):
            return NotImplemented  # which makes its collectives then, and those are seen
        namespace, name = getattr(func, "namespace", ""), getattr(func, "_opname", "")
        sends = name in _FUNCTIONAL if namespace == "_c10d_functional" else namespace == "c10d" and name not in _SILENT
        if self.steps and sends:
            self.steps[-1].append(_message(namespace, name, args))
        return func(*args, **(kwargs or {}))


def _message(namespace: str, name: str, args: Any) -> dict[str, Any]:
    """What one operator was given; one that is not known is an error, since it would not be counted."""
    if namespace == "c10d":
        collective, place = _OPERATORS[name]
        group = next(each for each in args if isinstance(each, torch.ScriptObject) and _is_group(each))
        ranks, factor = dist.ProcessGroup.unbox(group).size(), 1
    else:
        collective, place = _FUNCTIONAL[name], 0
        group = dist.distributed_c10d._resolve_process_group(next(e for e in reversed(args) if isinstance(e, str)))
        ranks = group.size()
        factor = ranks if collective == "all_gather" else 1  # its argument is a shard
    tensors = _tensors(args[place])
    return {
        "collective": collective,
        "bytes": factor * sum(each.numel() * each.element_size() for each in tensors),
        "elements": factor * sum(each.numel() for each in tensors),
        "dtype": str(tensors[0].dtype).removeprefix("torch."),
        "ranks": ranks,
    }


def _is_group(value: torch.ScriptObject) -> bool:
    return "ProcessGroup" in str(value._type())


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors(each)]


def record(folder: str) -> None:
    """Count from now on; at its end the rank writes ``RANK.json`` into `folder`: the messages of each step, from where
    it begins to where the next one does, and the shapes of the micro-batches."""
    from transformers.trainer_callback import CallbackHandler

    from hf_recipes.training.trainer import SupervisedTrainer

    recorder = Recorder()
    began, trained = CallbackHandler.on_step_begin, SupervisedTrainer.training_step
    ended = CallbackHandler.on_train_end

    def on_step_begin(self: Any, *arguments: Any) -> Any:
        recorder.steps.append([])
        return began(self, *arguments)

    def on_train_end(self: Any, *arguments: Any) -> Any:
        _write(recorder, Path(folder))
        return ended(self, *arguments)

    def training_step(self: Any, model: Any, inputs: Any, *more: Any) -> Any:
        recorder.batches.append(list(inputs["input_ids"].shape))
        return trained(self, model, inputs, *more)

    CallbackHandler.on_step_begin = on_step_begin  # type: ignore[method-assign]
    CallbackHandler.on_train_end = on_train_end  # type: ignore[method-assign]
    SupervisedTrainer.training_step = training_step  # type: ignore[method-assign]
    recorder.__enter__()


def _write(recorder: Recorder, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = {"steps": recorder.steps, "batches": recorder.batches}
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


def make_model(folder: str, sizes: dict[str, int]) -> None:
    """A random Llama of these sizes with a tokenizer of bytes, in `folder`/untied."""
    from sameness import make_models
    from tiny_models import make_tiny_llama
    from transformers import AutoConfig

    make_models(folder)
    target = Path(folder) / "untied"
    vocabulary = AutoConfig.from_pretrained(target).vocab_size
    make_tiny_llama(vocabulary, tied=False, **sizes).save_pretrained(target)
