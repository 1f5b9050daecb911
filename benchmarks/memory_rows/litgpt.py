"""What a step of litgpt holds that the same step of transformers does not, read in its source (`litgpt/lora.py`,
`litgpt/finetune/lora.py` of 2024-09), in Lightning Fabric's precision plugins and in bitsandbytes 0.42.

- Queries, keys and values come from one product with one LoRA around it: one dropout of the input where PEFT has one
  for each adapted layer, and the LoRA's product is kept by the `index_copy_` that pads it with zeros. Without grouped
  heads the kept values are a view of all three; with grouped heads keys and values are repeated before they are kept.
- Fabric hands on logits in fp32. They are made in chunks of 128 tokens, whose cross-entropies are kept in fp32 too, and
  the loop's variable holds them until the next step has made its own.
- With four bits the head is packed as well. bitsandbytes dequantised to fp16, cast that to bf16, and kept the input of
  each product as an attribute of the node, which lives as long as the graph: until the next step's logits replace the
  variable from which it hangs. AdamW's states are paged.
"""

from __future__ import annotations

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.weights import four_bit_bytes
from hf_recipes.plan.settings import TrainingSettings

_HALF, _FULL = 2, 4
_CHUNK = 128
# Bytes a logit that the planner counts for the loss `full_16bit`: two tensors of 16 bits.
_COUNTED = 2 * _HALF


def besides(geometry: Geometry, settings: TrainingSettings, *, step_before: bool) -> float:
    """Bytes at the peak beside what the planner counts for transformers.

    Args:
        geometry: with LoRA on queries and values.
        settings: the job.
        step_before: the fullest step follows another one as long (False: it is the first).
    """
    if settings.method == "full":
        return _logits(geometry, settings, step_before)
    total = _attention(geometry) * settings.micro_batch * settings.tokens * geometry.layers
    total += _logits(geometry, settings, step_before)
    if settings.quantization:
        total += _packed_head(geometry, settings)
        total += _inputs(geometry) * settings.micro_batch * settings.tokens * geometry.layers if step_before else 0.0
    return total


def _attention(geometry: Geometry) -> float:
    """Bytes of a token in one layer."""
    hidden, queries = geometry.hidden_size, geometry.heads * geometry.head_dim
    keys = geometry.kv_heads * geometry.head_dim
    dropped = -hidden * (_HALF + 1)  # one input and its mask less
    padded = (queries + keys) * _HALF
    values = (queries + keys) if keys == queries else 2 * (queries - keys)
    return dropped + padded + values * _HALF


def _logits(geometry: Geometry, settings: TrainingSettings, step_before: bool) -> float:
    """The fuller of two moments: the model has just returned (16 bits, fp32 and those of the step before); the backward
    pass begins (logits, their log-softmax, two gradients of a chunk). With four bits there is a third, that of the last
    chunk's product."""
    count = float(settings.micro_batch * settings.tokens * geometry.vocab_size)
    before = _FULL * count if step_before else 0.0
    chunk = min(1.0, _CHUNK / settings.tokens) * count
    moments = [(_HALF + _FULL) * count + before, 2 * _FULL * (count + chunk)]
    if settings.quantization:
        matrix = geometry.vocab_size * geometry.hidden_size
        moments.append(_HALF * count + before + 2 * _HALF * matrix)
    return max(moments) - _COUNTED * count


def _packed_head(geometry: Geometry, settings: TrainingSettings) -> float:
    """The head's bytes in four bits in place of sixteen."""
    count = geometry.vocab_size * geometry.hidden_size
    return four_bit_bytes(count, double_quantization=settings.double_quantization) - _HALF * count


def _inputs(geometry: Geometry) -> float:
    """Bytes of a token in one layer that the products of the step before still hold: the inputs of queries, keys and
    values, of the output projection, of gate and up, and of down."""
    queries = geometry.heads * geometry.head_dim
    return (2 * geometry.hidden_size + queries + geometry.intermediate_size) * _HALF
