"""The tensors of a model by shape and part, read from the model class on the meta device: no weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

# The parts a parameter may belong to, in the order they are told.
PARTS = ("embeddings", "attention", "mlp", "experts", "router", "norms", "head", "adapter", "other")


@dataclass(frozen=True)
class TensorShape:
    """One parameter as the model has it in memory.

    Attributes:
        name: as in `named_parameters` of the base (of the PEFT model for adapters).
        shape: its dimensions.
        part: one of `PARTS`.
        layer: number of the decoder layer it belongs to; None outside the layers.
        trained: whether it gets a gradient.
        linear: the weight of a linear layer that bitsandbytes would quantise (not the head, no embedding).
    """

    name: str
    shape: tuple[int, ...]
    part: str
    layer: int | None
    trained: bool = True
    linear: bool = False

    @property
    def count(self) -> int:
        """Parameters in it."""
        return prod(self.shape)


@dataclass(frozen=True)
class Geometry:
    """What memory, arithmetic and strategy depend on. Tied tensors are listed once, as embeddings.

    Attributes:
        model_type: of the config (``llama``, ``qwen3_moe`` …).
        tensors: all parameters, adapters included.
        hidden_size, layers, heads, kv_heads, head_dim, vocab_size: of the text model.
        intermediate_size: of a dense MLP (or of the experts where all layers have them).
        gated_mlp: gate and up projection, not one.
        tied: embeddings and head are one tensor.
        experts, experts_per_token: 0 and 0 for a dense model.
        expert_size: intermediate size of one expert; 0 for a dense model.
        shared_expert_size: intermediate size of what every token passes besides; 0 without.
        max_positions: what the model was made for.
        plain_head: the logits are a matrix product and nothing else (see `core.plain_head.has_plain_head`).
    """

    model_type: str
    tensors: tuple[TensorShape, ...]
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    gated_mlp: bool
    tied: bool
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    shared_expert_size: int = 0
    max_positions: int = 0
    plain_head: bool = True

    @property
    def total(self) -> int:
        """All parameters, tied ones once."""
        return sum(tensor.count for tensor in self.tensors)

    @property
    def trained(self) -> int:
        """Parameters that get a gradient."""
        return sum(tensor.count for tensor in self.tensors if tensor.trained)
