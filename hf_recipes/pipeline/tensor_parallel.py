"""The layers of a stage shared among ranks, as transformers' plan for the architecture says, by torch's own styles.

Embedding, norms and head stay whole on every rank: the loss is then that of one rank.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from hf_recipes.core.errors import UserError

_COLUMNS, _ROWS, _WHOLE = "colwise", "rowwise", "replicated_with_grad_allreduce"


def shard_layers(base: Any, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Share the linear layers of the stage's own decoder layers among the ranks of `mesh`, LoRA's matrices too.

    Args:
        base: the model, without the wrapper of PEFT.
        mesh: of one dimension.

    Returns:
        Whole parameters that each rank uses for its own heads alone: their gradients have to be summed over `mesh`.

    Raises:
        UserError: the architecture has no plan, or one with other styles.
    """
    plan = base.config.base_model_tp_plan or {}
    summed: list[nn.Parameter] = []
    for layer in base.model.layers:
        styles: dict[str, ParallelStyle] = {}
        for pattern, style in plan.items():
            name = pattern.removeprefix("layers.*.")
            if next(layer.parameters(), None) is None:  # of another stage
                continue
            if style == _WHOLE:
                summed += list(layer.get_submodule(name).parameters())
            elif style in (_COLUMNS, _ROWS):
                styles.update(_linear_styles(layer, name, style))
            else:
                raise UserError(f"tensor_parallel_size: the style '{style}' of '{pattern}' is not known here: give 1.")
        if styles:
            parallelize_module(layer, mesh, styles, src_data_rank=None)
    return summed


def _linear_styles(layer: nn.Module, name: str, style: str) -> dict[str, ParallelStyle]:
    """A plain linear layer, or one with LoRA: of two matrices in a row only the one at the shared side is cut."""
    make = ColwiseParallel if style == _COLUMNS else RowwiseParallel
    if not hasattr(layer.get_submodule(name), "lora_A"):
        return {name: make()}
    half = "lora_B" if style == _COLUMNS else "lora_A"
    return {f"{name}.base_layer": make(), f"{name}.{half}.default": make()}
