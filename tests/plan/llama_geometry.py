"""Geometries of Llama-like models by hand, in the order of the forward pass: `from llama_geometry import llama`."""

from __future__ import annotations

from hf_recipes.plan.geometry import Geometry, TensorShape


def llama(
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    *,
    tied: bool = False,
    lora_rank: int = 0,
    trained: bool = True,
) -> Geometry:
    """`lora_rank`: LoRA on q_proj and v_proj, the rest frozen."""
    head_dim = hidden // heads
    shapes = {
        "self_attn.q_proj": (heads * head_dim, hidden),
        "self_attn.k_proj": (kv_heads * head_dim, hidden),
        "self_attn.v_proj": (kv_heads * head_dim, hidden),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    train = trained and not lora_rank
    tensors = [TensorShape("model.embed_tokens.weight", (vocab, hidden), "embeddings", None, train)]
    for layer in range(layers):
        for name, shape in shapes.items():
            path = f"model.layers.{layer}.{name}"
            part = "attention" if "attn" in name else "mlp"
            adapted = lora_rank and name[-6:] in ("q_proj", "v_proj")
            base = f"{path}.base_layer.weight" if adapted else f"{path}.weight"
            tensors.append(TensorShape(base, shape, part, layer, train, linear=True))
            if adapted:
                pair = {"lora_A": (lora_rank, shape[1]), "lora_B": (shape[0], lora_rank)}
                tensors += [
                    TensorShape(f"{path}.{half}.default.weight", size, "adapter", layer) for half, size in pair.items()
                ]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors.append(TensorShape(f"model.layers.{layer}.{norm}.weight", (hidden,), "norms", layer, train))
    tensors.append(TensorShape("model.norm.weight", (hidden,), "norms", None, train))
    if not tied:
        tensors.append(TensorShape("lm_head.weight", (vocab, hidden), "head", None, train))
    return Geometry(
        model_type="llama",
        tensors=tuple(tensors),
        hidden_size=hidden,
        intermediate_size=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        gated_mlp=True,
        tied=tied,
    )


def llama_2_7b(**more) -> Geometry:
    return llama(4096, 11008, 32, 32, 32, 32000, **more)


def llama_3_8b(**more) -> Geometry:
    return llama(4096, 14336, 32, 32, 8, 128256, **more)


def llama_32_3b(**more) -> Geometry:
    return llama(3072, 8192, 28, 24, 8, 128256, tied=True, **more)
