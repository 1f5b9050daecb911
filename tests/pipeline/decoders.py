"""Tiny decoders of the kinds that are cut into stages; import as `from decoders import KINDS, make_decoder`."""

from __future__ import annotations

KINDS = {
    "mistral": {"sliding_window": 4},
    # Tied, with biases, and layers of two kinds.
    "qwen2": {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    "qwen3": {},
}


def config_of(kind, vocab_size=64, **more):
    """The config of a random decoder of hidden size 32, four heads in two groups."""
    from transformers import AutoConfig

    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    return AutoConfig.for_model(kind, **{**sizes, **KINDS.get(kind, {}), **more})


def make_decoder(kind, vocab_size=64, **more):
    """A random decoder in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_of(kind, vocab_size, **more))
