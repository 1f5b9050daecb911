"""Random models small enough for tests; import as `from tiny_models import make_tiny_llama`."""

from __future__ import annotations


def make_tiny_llama(vocab_size: int = 512, *, tied: bool = True, seed: int = 0, **overrides):
    """A random two-layer Llama (about 50 k parameters) in float32, grouped-query attention included."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        **{
            "vocab_size": vocab_size,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            **overrides,
        }
    )
    return LlamaForCausalLM(config)
