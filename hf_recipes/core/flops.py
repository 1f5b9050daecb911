"""The arithmetic a training step asks for, whatever way it is done.

A weight met by a token costs 2 FLOPs in the forward pass, 2 for the gradient of its input and 2 for its own: 6·N a
token in full fine-tuning (Kaplan et al. 2020, arXiv:2001.08361, 2.1), 4·N with frozen weights under LoRA. N are the
weights of matrix products; looking up an embedding multiplies nothing. Attention adds Q·Kᵀ and P·V, each
2 · width FLOPs a pair of positions, twice that backward (Chowdhery et al. 2022, arXiv:2204.02311, appendix B), here
over the pairs that causal attention has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MatmulWeights:
    """A model's weights by what a token costs.

    `forward`: weights of matrix products in the decoder; of experts, those active for one token. `input_gradient`:
    those of them that pass a gradient on; `weight_gradient`: those that get one. `head`: weights of the output head,
    with its two switches. `attention_width`: heads × head size; `attention_layers`, `attention_gradient_layers`:
    layers, and those through which a gradient flows.
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    head: float
    head_input_gradient: bool
    head_weight_gradient: bool
    attention_width: int
    attention_layers: int
    attention_gradient_layers: int


@dataclass(frozen=True)
class Work:
    """What a number of steps had to do: `tokens` without padding, `supervised` ones of them, and `pairs` of positions
    that causal attention joins."""

    tokens: int
    supervised: int
    pairs: int

    def __add__(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.supervised + other.supervised, self.pairs + other.pairs)


def causal_pairs(lengths: Iterable[int]) -> int:
    """Pairs of a position and one it sees (itself included), in samples of these lengths, each on its own."""
    return sum(length * (length + 1) // 2 for length in lengths)


def training_flops(weights: MatmulWeights, work: Work) -> float:
    """FLOPs of forward and backward pass; the head only where a label is, no recomputation, no padding."""
    body = 2.0 * work.tokens * (weights.forward + weights.input_gradient + weights.weight_gradient)
    passes = 1 + weights.head_input_gradient + weights.head_weight_gradient
    head = 2.0 * work.supervised * weights.head * passes
    layers = weights.attention_layers + 2 * weights.attention_gradient_layers
    return body + head + 4.0 * work.pairs * weights.attention_width * layers
