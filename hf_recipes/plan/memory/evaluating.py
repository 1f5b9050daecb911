"""The memory of evaluating between training steps, with or without generating text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.step import StepMemory, arithmetic, generation_layer
from hf_recipes.plan.settings import TrainingSettings


def evaluation(geometry: Geometry, settings: TrainingSettings, step: StepMemory) -> Mapping[str, float]:
    """Bytes by part of the fuller of two moments: a forward pass for the loss, and generating with a cache."""
    if settings.generates is None:
        return step.inference
    generating = _generation(geometry, settings, *settings.generates)
    return max(step.inference, generating, key=lambda parts: sum(parts.values()))


def _generation(geometry: Geometry, settings: TrainingSettings, rows: int, tokens: int) -> Mapping[str, float]:
    """Keys and values of all rows, one layer's twice while the next token's are appended, and the last token's logits
    in fp32 beside their copy."""
    how = arithmetic(replace(geometry, tensors=()), replace(settings, micro_batch=rows, tokens=tokens), "cuda")
    width = how.autocast or 2
    layer = 2.0 * rows * tokens * geometry.kv_heads * geometry.head_dim * width
    return {
        "cache": layer * geometry.layers,
        "activations": layer + generation_layer(geometry, settings, rows),
        "logits": rows * geometry.vocab_size * (width + 4 + 4),
    }
