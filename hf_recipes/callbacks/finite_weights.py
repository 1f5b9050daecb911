"""Whether a model's weights are finite, and which are not. Costs one pass over them: for rare moments."""

from __future__ import annotations

import math
from itertools import chain

import torch
from torch.distributed.tensor import DTensor

from hf_recipes.core import ranks


def weights_not_finite(model: torch.nn.Module, *, trainable_only: bool = False) -> list[str]:
    """Names of the parameters that hold NaN or infinity, on any rank; to be called on every rank.

    Of sharded parameters (DTensor, ZeRO-3) each rank looks at its own part; packed (quantised) ones are passed over.
    """
    held = {
        name: part
        for name, parameter in model.named_parameters()
        if (parameter.requires_grad or not trainable_only) and (part := _own_part(parameter)) is not None
    }
    largest = [torch.linalg.vector_norm(part, math.inf) for part in held.values()]  # NaN stays NaN in a maximum
    here = []
    if largest:
        finite = torch.stack([value.isfinite().to(largest[0].device) for value in largest]).tolist()
        here = [name for name, is_finite in zip(held, finite, strict=True) if not is_finite]
    return list(dict.fromkeys(chain.from_iterable(ranks.gather(here))))


def _own_part(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """The floating-point numbers of `parameter` that lie on this rank, if any."""
    whole = getattr(parameter, "ds_tensor", parameter).detach()  # ZeRO-3 leaves the parameter itself empty
    part = whole.to_local() if isinstance(whole, DTensor) else whole
    plain = type(part) in (torch.Tensor, torch.nn.Parameter) and part.is_floating_point() and part.dtype.itemsize > 1
    return part if plain and part.numel() and not part.is_meta else None
