"""What the stages hold, written in the layout that `save_pretrained` writes: one file a stage and an index, or one
adapter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hf_recipes.core.files import write_json
from hf_recipes.core.ranks import gather, is_main
from hf_recipes.core.tensors import SafetensorsWriter, TensorSpec, dtype_name, tensor_bytes
from hf_recipes.pipeline.ranks import PipelineRanks
from hf_recipes.pipeline.stage_model import adapter_parameters

_METADATA = {"format": "pt"}


def save_stages(
    parameters: Iterable[tuple[str, nn.Parameter]], ranks: PipelineRanks, directory: Path, *, copy: Any = None
) -> None:
    """Write every stage's tensors beside each other, one at a time, then the index; to be called on every rank.

    Args:
        parameters: of this stage, by their names in the whole model.
        ranks: who is who.
        directory: there already.
        copy: a parameter that another stage writes: the tied head on the last stage.
    """
    tensors = {name: each for name, each in parameters if each is not copy}
    file = _file_name(ranks)
    specs = [TensorSpec(name, dtype_name(each.dtype), tuple(each.shape)) for name, each in tensors.items()]
    if ranks.replica == 0:
        _write(directory / file, specs, tensors, ranks)
    written = gather(
        (file, [(spec.name, spec.nbytes) for spec in specs]) if ranks.replica == ranks.shard == 0 else None
    )
    if is_main() and ranks.stages > 1:
        _write_index(directory, [each for each in written if each is not None])


def _file_name(ranks: PipelineRanks) -> str:
    if ranks.stages == 1:
        return "model.safetensors"
    return f"model-{ranks.stage + 1:05d}-of-{ranks.stages:05d}.safetensors"


def _write(file: Path, specs: list[TensorSpec], tensors: dict[str, nn.Parameter], ranks: PipelineRanks) -> None:
    """Shards of a layer are put together by all that hold one, and written by the first of them."""
    writer = SafetensorsWriter(file, specs, _METADATA)
    if ranks.shard:
        for spec in writer.specs:
            whole(tensors[spec.name])
        return
    file.unlink(missing_ok=True)
    with writer:
        for spec in writer.specs:
            writer.write(spec.name, tensor_bytes(whole(tensors[spec.name])))


def _write_index(directory: Path, written: list[tuple[str, list[tuple[str, int]]]]) -> None:
    weight_map = {name: file for file, tensors in written for name, _ in tensors}
    total = sum(size for _, tensors in written for _, size in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(directory / "model.safetensors.index.json", index)


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """A tensor in full on the host; where it is shared among ranks, all of them must ask."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu()


def save_adapter(model: Any, ranks: PipelineRanks, directory: Path) -> None:
    """Write the adapter of all stages as PEFT writes one; to be called on every rank."""
    from safetensors.torch import save_file

    if ranks.replica:
        return
    mine = {name: whole(each).contiguous() for name, each in adapter_parameters(model)}
    if ranks.shard:
        return
    of_stages: list[Any] | None = [None] * ranks.stages if is_main() else None
    dist.gather_object(mine, of_stages, group=ranks.group("pp"), group_dst=0)
    if of_stages is not None:
        tensors = {name: tensor for stage in of_stages for name, tensor in stage.items()}
        save_file(tensors, str(directory / "adapter_model.safetensors"), metadata=_METADATA)
        _adapter_config(model).save_pretrained(str(directory))


def _adapter_config(model: Any) -> Any:
    """PEFT's configuration as PEFT saves it: for inference."""
    from copy import copy

    config = copy(model.peft_config["default"])
    config.inference_mode = True
    return config
