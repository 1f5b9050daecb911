"""What an adapter's values must be before they are merged: finite, and not as they were before the first step."""

from __future__ import annotations

import math

import torch

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import Adapter
from hf_recipes.export.edits import Edit
from hf_recipes.export.pairs import LoraPair
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


def unnamed_modules(adapter: Adapter) -> list[str]:
    """Modules that the adapter has pairs for and its config (`target_modules`, as a list) does not name: PEFT would not
    load those. None where that cannot be told: another kind of target, or parameters and ties that PEFT adds itself."""
    targets = adapter.config.get("target_modules")
    if not isinstance(targets, list) or any(
        adapter.config.get(k) for k in ("target_parameters", "ensure_weight_tying")
    ):
        return []
    ends = tuple(f".{target}" for target in targets)
    modules = [name.removesuffix(".weight") for name, edit in adapter.edits.items() if edit.lora]
    return [module for module in modules if not f".{module}".endswith(ends)]


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
