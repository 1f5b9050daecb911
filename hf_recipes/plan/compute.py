"""The arithmetic of a training job from a geometry alone, phase by phase.

The same count as `core.flops` makes of a live model: 2 FLOPs a weight and token forward, 2 for the gradient of its
input, 2 for its own (Kaplan et al. 2020, arXiv:2001.08361, 2.1), so 6·N·D for a full fine-tune and 4·N·D with frozen
weights; recomputed layers add a forward pass, 2·N·D. N are weights of matrix products, experts by those that one token
meets; attention counts pairs of positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from math import prod

from hf_recipes.core.flops import MatmulWeights, Work, causal_pairs
from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.settings import LAYERS_AGAIN, TrainingSettings

# PEFT's module that holds prefixes: no matrix product of a token, and read by attention in every layer.
_PREFIXES = "prompt_encoder"


@dataclass(frozen=True)
class Arithmetic:
    """FLOPs by phase.

    Attributes:
        forward, input_gradient, weight_gradient: of the decoder's weights.
        attention: Q·Kᵀ and P·V, forward and backward.
        head: of labelled positions, forward and backward.
        again: what is computed once more or for nothing: layers under activation checkpointing, and what the loss does
            beyond labelled positions.
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    attention: float
    head: float
    again: float = 0.0

    @property
    def useful(self) -> float:
        """Without `again`: what an MFU is counted from."""
        return self.forward + self.input_gradient + self.weight_gradient + self.attention + self.head

    @property
    def computed(self) -> float:
        """All of it: what the device has to do."""
        return self.useful + self.again

    def times(self, factor: float) -> Arithmetic:
        """So many times as much."""
        fields = (self.forward, self.input_gradient, self.weight_gradient, self.attention, self.head, self.again)
        return Arithmetic(*(factor * each for each in fields))


def rule_of_thumb(parameters: float, tokens: float, *, frozen: bool = False, recomputed: bool = False) -> float:
    """FLOPs where nothing but a number of parameters is known: 6·N·D; 4·N·D with frozen weights; + 2·N·D recomputed."""
    return ((4.0 if frozen else 6.0) + (2.0 if recomputed else 0.0)) * parameters * tokens


def work_of(lengths: Iterable[int], supervised_share: float = 1.0) -> Work:
    """The work of samples of these lengths, each attending to itself alone.

    Args:
        lengths: tokens of each sample; padded lengths give what is computed rather than what is useful.
        supervised_share: of their positions, those that are labelled.
    """
    lengths = list(lengths)
    tokens = sum(lengths)
    return Work(tokens, round(tokens * supervised_share), causal_pairs(lengths))


def matmul_weights_of(geometry: Geometry) -> MatmulWeights:
    """`core.matmul_weights.matmul_weights`, from shapes. Tensors stand in the order of the forward pass."""
    active = geometry.experts_per_token / geometry.experts if geometry.experts else 1.0
    flows = any(tensor.trained and _PREFIXES in tensor.name for tensor in geometry.tensors)
    forward = input_gradient = weight_gradient = 0.0
    for _, group in groupby(geometry.tensors, key=lambda tensor: tensor.name.rpartition(".")[0]):
        module = list(group)
        for tensor in filter(is_multiplied, module):
            count = tensor.count * (active if len(tensor.shape) == 3 else 1.0)
            forward += count
            input_gradient += count if flows else 0.0
            weight_gradient += count if tensor.trained else 0.0
        flows = flows or any(tensor.trained for tensor in module if tensor.part != "head")
    head, head_trained = _head(geometry)
    return MatmulWeights(
        forward=forward,
        input_gradient=input_gradient,
        weight_gradient=weight_gradient,
        head=head,
        head_input_gradient=flows,
        head_weight_gradient=head_trained,
        attention_width=geometry.heads * geometry.head_dim,
        attention_layers=geometry.layers,
        attention_gradient_layers=_gradient_layers(geometry),
    )


def arithmetic(geometry: Geometry, settings: TrainingSettings, work: Work) -> Arithmetic:
    """FLOPs of so much work, by phase; `useful` is `core.flops.training_flops` of the same.

    Args:
        geometry: with its trained flags.
        settings: checkpointing and loss decide what is computed again.
        work: of a step, an epoch or a run; padded positions in it count as computed.
    """
    weights = matmul_weights_of(geometry)
    layers = weights.attention_layers + 2 * weights.attention_gradient_layers
    passes = 1 + weights.head_input_gradient + weights.head_weight_gradient
    return Arithmetic(
        forward=2.0 * work.tokens * weights.forward,
        input_gradient=2.0 * work.tokens * weights.input_gradient,
        weight_gradient=2.0 * work.tokens * weights.weight_gradient,
        attention=4.0 * work.pairs * weights.attention_width * layers,
        head=2.0 * work.supervised * weights.head * passes,
        again=_layers_again(geometry, settings, weights, work) + _head_again(settings, weights, work),
    )


def forward_flops(geometry: Geometry, work: Work) -> float:
    """FLOPs of an evaluation: forward passes, the head on labelled positions."""
    weights = matmul_weights_of(geometry)
    pairs = 4.0 * work.pairs * weights.attention_width * weights.attention_layers
    return 2.0 * work.tokens * weights.forward + 2.0 * work.supervised * weights.head + pairs


def is_multiplied(tensor: TensorShape) -> bool:
    """Whether it is a factor of the decoder's matrix products: no embedding, head, norm, bias or prefix."""
    return len(tensor.shape) >= 2 and tensor.part not in ("embeddings", "head") and _PREFIXES not in tensor.name


def _head(geometry: Geometry) -> tuple[float, bool]:
    """Weights of the output head and whether they are trained; a tied one stands among the embeddings."""
    part = "embeddings" if geometry.tied else "head"
    found = [tensor for tensor in geometry.tensors if tensor.part == part and len(tensor.shape) == 2]
    largest = max(found, key=lambda tensor: tensor.count, default=None)
    if largest is None:
        return float(geometry.vocab_size * geometry.hidden_size), False
    return float(prod(largest.shape)), largest.trained


def _gradient_layers(geometry: Geometry) -> int:
    trained = [tensor for tensor in geometry.tensors if tensor.trained]
    if any(tensor.part == "embeddings" or _PREFIXES in tensor.name for tensor in trained):
        return geometry.layers
    first = min((tensor.layer for tensor in trained if tensor.layer is not None), default=geometry.layers)
    return geometry.layers - first


def _layers_again(geometry: Geometry, settings: TrainingSettings, weights: MatmulWeights, work: Work) -> float:
    """A layer is computed again where it keeps its input alone, and only if a gradient flows through it."""
    share = LAYERS_AGAIN[settings.checkpointing] * weights.attention_gradient_layers / max(1, geometry.layers)
    attention = 0.0 if settings.checkpointing == "selective" else 4.0 * work.pairs * weights.attention_width
    return share * (2.0 * work.tokens * weights.forward + attention * weights.attention_layers)


def _head_again(settings: TrainingSettings, weights: MatmulWeights, work: Work) -> float:
    """TRL's chunks compute the logits once more; full logits are those of all positions; this package's and fused
    losses make the gradient in the forward pass."""
    if settings.loss == "trl_chunked":
        return 2.0 * work.supervised * weights.head
    if settings.loss == "full":
        passes = 1 + weights.head_input_gradient + weights.head_weight_gradient
        return 2.0 * (work.tokens - work.supervised) * weights.head * passes
    return 0.0
