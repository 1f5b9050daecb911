"""Which models can be cut: decoders of embedding, layers of one kind, norm and head."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.errors import UserError

# Their layers hand on hidden states and nothing else; tests train each of them in stages.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def check_decoder(config: Any) -> None:
    """Raise `UserError` for a model that is not cut into stages here, or that is quantised."""
    kind = getattr(config, "model_type", None)
    if kind not in MODEL_TYPES:
        raise UserError(
            f"strategy: pp cuts {', '.join(MODEL_TYPES)} into stages, and this model is of type '{kind}': take fsdp or "
            "zero3."
        )
    if getattr(config, "quantization_config", None) is not None:
        raise UserError("strategy: pp reads unquantised weights only, and this model is quantised: take ddp or fsdp.")


def check_shards(config: Any, shards: int) -> None:
    """Raise `UserError` where the heads or the MLP of a layer cannot be shared evenly."""
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if (count := getattr(config, name)) % shards:
            raise UserError(
                f"tensor_parallel_size: {shards} does not divide the model's {name}, {count}: give a divisor of it."
            )
