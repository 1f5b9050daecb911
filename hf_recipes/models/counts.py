"""How many parameters a model has, and how many of them are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(trainable, all) parameters by real shapes; 4-bit weights count as what they stand for, tied ones once, and those
    that ZeRO-3 shows empty as what they are when gathered."""
    trainable = total = 0
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        count = getattr(parameter, "ds_numel", parameter.numel()) if state is None else state.shape.numel()
        total += count
        trainable += count if parameter.requires_grad else 0
    return trainable, total
