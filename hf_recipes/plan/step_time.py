"""Seconds of one training step, part by part.

A step takes, for each micro-batch, the longest of
- its FLOPs over peak × utilisation (`plan.utilization`, or measured),
- reading its weights from memory once a pass,
- starting its operators from Python, some µs each,
and what cannot run beside them: writing out quantised weights before each product (2.5 bytes a weight and pass at the
memory's rate: why QLoRA pays most with short micro-batches), DoRA's weight norms; then once a step the optimizer's pass
over its states, collectives and transfers beyond what computation hides (`plan.strategy.step_cost`, lower bounds at
75 % of a link's figure), and a pipeline's idle time.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_recipes.core.accelerators import Accelerator
from hf_recipes.plan.compute import Arithmetic, is_multiplied
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import LAYERS_AGAIN, TrainingSettings
from hf_recipes.plan.strategy.machines import Machines
from hf_recipes.plan.strategy.step_cost import ADAM_BYTES, step_cost
from hf_recipes.plan.utilization import Band, compute_dtype, peak_flops

# Operators of a Llama layer that start a kernel, forward and backward, counted by dispatch in transformers 5.24:
# 34 + 67 in one dtype, 48 + 87 under autocast, 18 more for each adapted projection. torch.compile fuses most of them.
_OPERATORS, _AUTOCAST_OPERATORS, _ADAPTER_OPERATORS, _FUSED = 101, 34, 18, 0.25
_OPERATOR_SECONDS = Band(4e-6, 6e-6, 12e-6)  # of one, dispatch and launch, by the host's speed
_DEQUANTISED_BYTES = {"nf4": 2.52, "int8": 3.0}  # read packed, written in 16 bits
_DORA_BYTES = 16.0  # ‖W + BA‖ of an adapted weight: product, sum and norm, mostly in fp32
_LESS_BYTES = {"8bit": 16.0, "adafactor": 14.0, "sgd": 12.0, "lion": 20.0}
_TALK_SLOWER = 2.0  # a link that reaches half of the assumed rate, or nothing hidden


@dataclass(frozen=True)
class Speed:
    """How fast a run may be: share of the peak, seconds to start an operator, and by how much communication is slower
    than its bound."""

    utilization: float
    operator_seconds: float
    talk: float = 1.0


def speeds(utilization: Band) -> tuple[Speed, Speed, Speed]:
    """Of a fast, an expected and a slow run."""
    return (
        Speed(utilization.high, _OPERATOR_SECONDS.low),
        Speed(utilization.expected, _OPERATOR_SECONDS.expected),
        Speed(utilization.low, _OPERATOR_SECONDS.high, _TALK_SLOWER),
    )


def step_parts(
    geometry: Geometry,
    settings: TrainingSettings,
    layout: Layout,
    accelerator: Accelerator,
    of_rank: Arithmetic,
    speed: Speed,
    network: float,
) -> dict[str, float]:
    """Seconds of one step of one rank by part.

    Args:
        geometry, settings, layout, accelerator: the job and what it runs on.
        of_rank: FLOPs of one step of one rank.
        speed: see `speeds`.
        network: bytes a second that one machine sends to another.

    Raises:
        UserError: the device has no rate in the job's dtype.
    """
    passes = settings.accumulation
    cut = layout.tensor * layout.pipeline
    compute = max(
        of_rank.computed / (peak_flops(accelerator, settings) * speed.utilization),
        passes * _weight_bytes(geometry, settings) / cut / accelerator.bandwidth,
        passes * _operators(geometry, settings) / layout.pipeline * speed.operator_seconds,
    )
    cost = step_cost(geometry, settings, layout, _machines(accelerator, layout, settings, network))
    shared = layout.shards if layout.sharding not in ("none", "ddp") else 1
    optimizer = 0.0 if layout.offload_optimizer else geometry.trained / cut / shared * _optimizer_bytes(settings)
    return {
        "compute": compute,
        "dequantisation": passes * _unpacked_bytes(geometry, settings) / cut / accelerator.bandwidth,
        "optimizer": optimizer / accelerator.bandwidth,
        "communication": cost.communication * speed.talk,
        "offload": cost.offload * speed.talk,
        "idle pipeline": (layout.pipeline - 1) / passes * compute,
    }


def _machines(accelerator: Accelerator, layout: Layout, settings: TrainingSettings, network: float) -> Machines:
    return Machines(
        memory_bytes=accelerator.memory_bytes,
        flops=peak_flops(accelerator, settings),
        bandwidth=accelerator.bandwidth,
        link=accelerator.link,
        host_link=accelerator.host_link,
        per_node=layout.ranks_per_node,
        nodes=layout.nodes,
        network=network,
    )


def _passes(settings: TrainingSettings) -> float:
    """How often a micro-batch meets a layer's weights: forward, backward, and once more where it is recomputed."""
    return 2.0 + LAYERS_AGAIN[settings.checkpointing]


def _weight_bytes(geometry: Geometry, settings: TrainingSettings) -> float:
    """Bytes of 16-bit (or fp32) weights that one micro-batch reads, and of gradients that it writes. All experts are
    met by one token or another."""
    wide = 4.0 if compute_dtype(settings) == "float32" else 2.0
    factors = [tensor for tensor in geometry.tensors if is_multiplied(tensor)]
    read = sum(tensor.count for tensor in factors) + geometry.vocab_size * geometry.hidden_size
    return wide * (_passes(settings) * read + sum(tensor.count for tensor in factors if tensor.trained))


def _operators(geometry: Geometry, settings: TrainingSettings) -> float:
    adapted = sum(tensor.part == "adapter" and tensor.trained for tensor in geometry.tensors) / 2  # A and B
    a_layer = _OPERATORS + (_AUTOCAST_OPERATORS if settings.autocast_dtype else 0)
    count = a_layer * geometry.layers + _ADAPTER_OPERATORS * adapted
    return count * (_passes(settings) + 1) / 3 * (_FUSED if settings.compiled else 1.0)


def _unpacked_bytes(geometry: Geometry, settings: TrainingSettings) -> float:
    """Traffic of one micro-batch for quantised weights and for DoRA's norms of the weights it adapts."""
    moved = 0.0
    if settings.quantization is not None:
        packed = sum(tensor.count for tensor in geometry.tensors if tensor.linear and not tensor.trained)
        moved += packed * _DEQUANTISED_BYTES[settings.quantization] * _passes(settings)
    if settings.method == "dora":
        moved += _DORA_BYTES * _adapted_weights(geometry) * (_passes(settings) - 1)
    return moved


def _adapted_weights(geometry: Geometry) -> int:
    """Weights of the layers that have a LoRA pair beside them."""
    adapted = {tensor.name.split(".lora_")[0] for tensor in geometry.tensors if ".lora_A" in tensor.name}
    return sum(tensor.count for tensor in geometry.tensors if tensor.name.removesuffix(".base_layer.weight") in adapted)


def _optimizer_bytes(settings: TrainingSettings) -> float:
    return next((count for name, count in _LESS_BYTES.items() if name in settings.optimizer), ADAM_BYTES)
