"""Llama-like geometries from their figures, machines, and a plain memory estimate; import as
`from strategy_helpers import …`."""

from __future__ import annotations

from dataclasses import replace

from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.strategy.candidates import CHECKPOINTINGS
from hf_recipes.plan.strategy.machines import Machines

GIB = 2**30
# Shares of the activations that each checkpointing keeps, in the order of `CHECKPOINTINGS`.
KEPT = dict(zip(CHECKPOINTINGS, (1.0, 0.78, 0.7, 0.55, 0.2, 0.1, 0.05), strict=True))

H100 = Machines(79.6 * GIB, 989e12, 3.35e12, link=900e9, host_link=55e9)
A100_40 = Machines(39.4 * GIB, 312e12, 1.555e12, link=600e9, host_link=25e9)
RTX_4090 = Machines(23.6 * GIB, 165e12, 1.008e12, link=0.0, host_link=25e9)
T4 = Machines(14.6 * GIB, 65e12, 0.32e12, link=0.0, host_link=12e9)


def node(machines, per_node, nodes=1, **more):
    return replace(machines, per_node=per_node, nodes=nodes, **more)


def llama(hidden=4096, layers=32, heads=32, kv_heads=32, intermediate=11008, vocab=32000, *, trained=True):
    """A geometry by hand: no torch, no transformers. The default is Llama-2-7B: 6,738,415,616 parameters."""
    head_dim = hidden // heads
    tensors = [TensorShape("model.embed_tokens.weight", (vocab, hidden), "embeddings", None, trained)]
    for layer in range(layers):
        tensors += list(_layer(layer, hidden, kv_heads * head_dim, intermediate, trained))
    tensors.append(TensorShape("model.norm.weight", (hidden,), "norms", None, trained))
    tensors.append(TensorShape("lm_head.weight", (vocab, hidden), "head", None, trained))
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
        tied=False,
    )


def _layer(layer, hidden, kv, intermediate, trained):
    stem = f"model.layers.{layer}."
    for name, shape in (("q", (hidden, hidden)), ("k", (kv, hidden)), ("v", (kv, hidden)), ("o", (hidden, hidden))):
        yield TensorShape(f"{stem}self_attn.{name}_proj.weight", shape, "attention", layer, trained, True)
    for name, shape in (
        ("gate", (intermediate, hidden)),
        ("up", (intermediate, hidden)),
        ("down", (hidden, intermediate)),
    ):
        yield TensorShape(f"{stem}mlp.{name}_proj.weight", shape, "mlp", layer, trained, True)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield TensorShape(f"{stem}{name}.weight", (hidden,), "norms", layer, trained)


def plain_estimate(geometry, settings, layout):
    """16 bytes a trained parameter (sharded by stage), 2 a frozen one (0.52 in NF4), 34·s·b·h a layer, and 1 GiB."""
    shards = layout.shards
    of = {"zero1": (1, 1, shards), "zero2": (1, shards, shards), "zero3": (shards,) * 3, "fsdp": (shards,) * 3}
    weights_by, gradients_by, states_by = of.get(layout.sharding, (1, 1, 1))
    cut = layout.tensor * layout.pipeline
    frozen = sum(
        tensor.count * (0.52 if settings.quantization == "nf4" and tensor.linear else 2)
        for tensor in geometry.tensors
        if not tensor.trained
    )
    per_state = 2.0 if "8bit" in settings.optimizer else 12.0
    weights = (frozen + 2 * geometry.trained) / weights_by / cut
    states = per_state * geometry.trained / states_by / cut
    row = 34 * settings.tokens * geometry.hidden_size * geometry.layers / layout.context / cut
    parts = {
        "weights": 0.0 if layout.offload_weights else weights,
        "gradients": 2 * geometry.trained / gradients_by / cut,
        "optimizer": 0.0 if layout.offload_optimizer else states,
        "activations": settings.micro_batch * row * KEPT[settings.checkpointing],
    }
    host = {"optimizer": states} if layout.offload_optimizer else {}
    if layout.offload_weights:
        host["weights"] = weights
    return MemoryEstimate({"backward": parts}, host, context_bytes=GIB)
