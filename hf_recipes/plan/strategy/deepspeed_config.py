"""DeepSpeed's configuration for a layout."""

from __future__ import annotations

from typing import Any

from hf_recipes.plan.layout import LIVE_PARAMETERS, PREFETCH_BUCKET, REDUCE_BUCKET, Layout

_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}


def uses_deepspeed(layout: Layout) -> bool:
    """Whether DeepSpeed runs it."""
    return layout.sharding in _STAGES


def deepspeed_config(layout: Layout) -> dict[str, Any]:
    """The content of DeepSpeed's JSON file. What the recipe decides (batch, clipping, precision) is ``auto``, which the
    Trainer fills in: stated twice, the two would have to agree.

    Args:
        layout: one that `uses_deepspeed`.
    """
    return {
        "zero_optimization": _zero(layout),
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_allow_untested_optimizer": True,
    }


def _zero(layout: Layout) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": _STAGES[layout.sharding],
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": REDUCE_BUCKET,
        "allgather_bucket_size": REDUCE_BUCKET,
    }
    if layout.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.sharding == "zero3":
        del zero["allgather_bucket_size"]
        zero["stage3_prefetch_bucket_size"] = PREFETCH_BUCKET
        zero["stage3_max_live_parameters"] = LIVE_PARAMETERS
        zero["stage3_max_reuse_distance"] = LIVE_PARAMETERS
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        if layout.offload_weights:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero
