"""What others would say about a run: accelerate's and DeepSpeed's own functions, and the popular rule of thumb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import TrainingSettings

# (model on the meta device, geometry with the adapters, settings, layout) → bytes on one device.
Estimator = Callable[[Any, Geometry, TrainingSettings, Layout], float]


def accelerate_estimate(model: Any, geometry: Geometry, settings: TrainingSettings, layout: Layout) -> float:
    """`accelerate estimate-memory`, "Training using Adam": four times the fp32 weights; it knows no method, batch or
    length. (The command takes names on the Hub; its functions take any model.)"""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    size, _ = calculate_maximum_sizes(model.float())
    return float(max(estimate_training_usage(size, "float32").values()))


def deepspeed_estimate(model: Any, geometry: Geometry, settings: TrainingSettings, layout: Layout) -> float:
    """DeepSpeed's estimators without offload: that of ZeRO-3 where weights are sharded, of ZeRO-2 elsewhere (on one
    device all of it). They count model states of mixed-precision Adam for all parameters."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    total = sum(each.numel() for each in model.parameters())
    if layout.sharding in ("zero3", "fsdp"):
        largest = max(sum(each.numel() for each in module.parameters(recurse=False)) for module in model.modules())
        return float(
            estimate_zero3_model_states_mem_needs(
                total, largest, layout.ranks, 1, cpu_offload=False, cpu_offload_params=False
            )[1]
        )
    return float(estimate_zero2_model_states_mem_needs(total, layout.ranks, 1, cpu_offload=False)[1])


def rule_of_thumb(model: Any, geometry: Geometry, settings: TrainingSettings, layout: Layout) -> float:
    """Parameters × bytes of their dtype × 5, and activations of 34·s·b·h a layer (Korthikanti et al. 2022, the form
    that is quoted for 16-bit training without the square term)."""
    width = {"float32": 4, "bfloat16": 2, "float16": 2}[settings.weights_dtype]
    parameters = sum(each.numel() for each in model.parameters())
    activations = 34 * settings.tokens * settings.micro_batch * geometry.hidden_size * geometry.layers
    return float(5 * width * parameters + activations)


OTHERS: dict[str, Estimator] = {
    "accelerate estimate-memory": accelerate_estimate,
    "DeepSpeed estimator": deepspeed_estimate,
    "params × bytes × 5 + 34sbhL": rule_of_thumb,
}
