"""`--batch` and `--precision`: what they mean in recipe keys. Pure."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.errors import UserError

_PRECISIONS: dict[str, dict[str, bool]] = {
    "fp32": {"bf16": False, "fp16": False},
    "bf16": {"bf16": True, "fp16": False},
    "fp16": {"bf16": False, "fp16": True},
}


def global_batch(rows: int, ranks: int, micro_batch: int) -> dict[str, int]:
    """Micro-batch and accumulation of a global batch: the given micro-batch, or the largest below it that divides.

    Args:
        rows: that meet in one optimizer step, over all ranks.
        ranks: data-parallel ones.
        micro_batch: the largest that a rank computes at once.

    Raises:
        UserError: the rows do not divide among the ranks.
    """
    if rows % ranks:
        raise UserError(f"--batch: {rows} rows do not divide among {ranks} ranks: give a multiple of {ranks}.")
    each = rows // ranks
    micro = next(size for size in range(min(micro_batch, each), 0, -1) if each % size == 0)
    return {"per_device_train_batch_size": micro, "gradient_accumulation_steps": each // micro}


def precision_keys(name: str) -> dict[str, Any]:
    """How a run computes: fp32, or autocast to bf16 or fp16. The method decides what its weights are held in (full:
    fp32; adapters: the base in what is computed in)."""
    return {"dtype": "auto", **_PRECISIONS[name]}
