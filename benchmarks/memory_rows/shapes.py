"""Shapes of the models that are measured: small ones of each family, and two that people really tune."""

from __future__ import annotations

from typing import Any

# Name → (class of the config in transformers, its values). Weights are random.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-1m": (
        "LlamaConfig",
        {
            "vocab_size": 4096,
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "tie_word_embeddings": True,
        },
    ),
    "llama-15m": (
        "LlamaConfig",
        {
            "vocab_size": 16000,
            "hidden_size": 288,
            "intermediate_size": 768,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "tie_word_embeddings": False,
        },
    ),
    "llama-110m": (
        "LlamaConfig",
        {
            "vocab_size": 32000,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
        },
    ),
    # SmolLM2-135M.
    "smollm2-135m": (
        "LlamaConfig",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
    # Qwen2.5-0.5B.
    "qwen2.5-0.5b": (
        "Qwen2Config",
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-40m": (
        "Qwen3Config",
        {
            "vocab_size": 32000,
            "hidden_size": 384,
            "intermediate_size": 1152,
            "num_hidden_layers": 10,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "tie_word_embeddings": False,
        },
    ),
    "mistral-60m": (
        "MistralConfig",
        {
            "vocab_size": 32000,
            "hidden_size": 512,
            "intermediate_size": 1792,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
        },
    ),
    "gemma-30m": (
        "GemmaConfig",
        {
            "vocab_size": 64000,
            "hidden_size": 256,
            "intermediate_size": 2048,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    "mixtral-50m": (
        "MixtralConfig",
        {
            "vocab_size": 16000,
            "hidden_size": 320,
            "intermediate_size": 896,
            "num_hidden_layers": 5,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3-moe-30m": (
        "Qwen3MoeConfig",
        {
            "vocab_size": 16000,
            "hidden_size": 256,
            "intermediate_size": 768,
            "moe_intermediate_size": 192,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "tie_word_embeddings": False,
        },
    ),
}


def build_config(name: str, attention: str = "sdpa") -> Any:
    """The transformers config of a shape, with the attention implementation set."""
    import transformers

    kind, values = SHAPES[name]
    config = getattr(transformers, kind)(
        **values, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, pad_token_id=2
    )
    config._attn_implementation = attention
    config.use_cache = False
    return config
