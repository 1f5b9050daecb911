"""The dtype of what is trained over a 16-bit base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_recipes.core.log import logger

if TYPE_CHECKING:
    import torch
    from torch import nn


def widen_trained(model: nn.Module, *, under_autocast: bool) -> None:
    """Put trained 16-bit parameters in fp32: a bf16 weight moves only by steps of 1/256 of itself or more.

    PEFT does it for its own matrices; for layers trained in full it does not.

    Args:
        model: With its trained parameters set; tied ones stay tied.
        under_autocast: Whether the model computes under autocast, which alone bridges two dtypes; without it nothing
            is changed, which is a warning.
    """
    import torch

    narrow = [p for p in model.parameters() if p.requires_grad and p.dtype in (torch.bfloat16, torch.float16)]
    if narrow and not under_autocast:
        logger.warning(
            "%d trained tensors are kept in 16 bits: most updates at small learning rates are rounded away; "
            "'dtype: fp32' keeps them.",
            len(narrow),
        )
    elif narrow:
        for parameter in narrow:
            parameter.data = parameter.data.float()  # in place of the old data, so that tied weights stay tied
        logger.info("The trained weights are kept in fp32, the frozen ones in 16 bits; autocast bridges the two.")


def trained_dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    """The dtype of every trained parameter, by name."""
    return {name: each.dtype for name, each in model.named_parameters() if each.requires_grad}


def restore_dtypes(model: nn.Module, dtypes: dict[str, torch.dtype]) -> None:
    """Give trained parameters back the dtypes they had: TRL's trainer puts adapters over a quantised base in bf16."""
    for name, parameter in model.named_parameters():
        if name in dtypes and parameter.dtype != dtypes[name]:
            parameter.data = parameter.data.to(dtypes[name])
