"""What an adapter's values must be before they are merged: finite, and not as they were before the first step."""

from __future__ import annotations

import math

import torch

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import Adapter
from hf_recipes.export.edits import Edit, LoraPair
from hf_recipes.export.plan import MergePlan


def check_finite(adapter: Adapter) -> None:
    """Raise `UserError` naming the first adapter tensor with NaN or Inf (case M8)."""
    for name, entry in adapter.entries.items():
        if not is_finite(entry.load()):
            raise UserError(
                f"Adapter tensor '{name}' holds NaN or Inf: training diverged; merge an earlier checkpoint instead."
            )


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a float tensor has no NaN and no Inf; other dtypes always are.

    A sum passes both on, so a finite one clears all values, 60 × faster than `isfinite().all()`; one that ran over says
    nothing, and `max`, which passes NaN on too, decides.
    """
    if not tensor.is_floating_point() or tensor.numel() == 0 or math.isfinite(tensor.sum().item()):
        return True
    return bool(torch.isfinite(tensor.abs().max()))


def is_untrained(adapter: Adapter) -> bool:
    """Whether the adapter is as it was initialised: nothing but pairs with one half all zero and vectors of ones."""
    return all(_is_untrained(edit) for edit in adapter.edits.values())


def _is_untrained(edit: Edit) -> bool:
    if edit.value or edit.rows or edit.bias:
        return False
    if edit.scaling:
        return bool((edit.scaling.vector.load() == 1).all())
    if edit.combined and edit.combined.pair:
        return not any(_has_update(update) for update in edit.combined.updates if isinstance(update, LoraPair))
    if edit.lora is None or edit.lora.magnitude:
        return False
    return not _has_update(edit.lora)


def _has_update(pair: LoraPair) -> bool:
    fresh = pair.a if pair.embedding else pair.b
    return bool(fresh.load().any())


def other_base_values(plan: MergePlan) -> list[str]:
    """Tensors for which the adapter brings the base's own values, of the base's shape, and they are others."""
    found = []
    for output in plan.outputs:
        copy = output.edit.base if output.edit else None
        if copy and copy is output.start and copy.shape == output.source.shape:
            given = output.source.load()
            if not torch.equal(copy.load().to(given.dtype), given):
                found.append(output.spec.name)
    return found
