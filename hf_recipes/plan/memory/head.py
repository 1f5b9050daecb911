"""Final norm's output to loss: the part of a step that is as wide as the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.operations import FULL
from hf_recipes.plan.memory.projection import Arithmetic
from hf_recipes.plan.memory.tape import Value
from hf_recipes.plan.settings import TrainingSettings

# Of `training.loss`.
CHUNK_TOKENS = 256
# Of TRL's chunked loss.
TRL_TILE_TOKENS, TRL_TILE_WORDS = 4096, 32768
# Pieces that logits are made in where they are kept in 16 bits (torchtune's default).
PIECES = 8


@dataclass(frozen=True)
class HeadMemory:
    """Bytes of head and loss.

    Attributes:
        forward: at the fullest moment of the forward pass.
        kept: from there to the backward pass.
        backward: at the fullest moment of the backward pass, what is kept included.
        gradient: of the head's weight, left behind.
        grad_hidden: gradient of the hidden states that goes on into the model.
    """

    forward: float
    kept: float
    backward: float
    gradient: float
    grad_hidden: float


@dataclass(frozen=True)
class _Head:
    """Sizes that the ways below are put together from: tokens, those that have a next one and those with labels, widths
    of hidden states and of the head's product, bytes of the head's weight in the compute dtype where that is a copy."""

    tokens: float
    shifted: float
    supervised: float
    hidden: int
    words: int
    width: int
    compute: int
    autocast: bool
    weight: Value
    device: str

    @property
    def copy(self) -> float:
        """The weight as autocast casts it."""
        return self.weight.count * self.compute if self.compute != self.weight.width else 0.0

    @property
    def gradient(self) -> float:
        """Of the weight."""
        return self.weight.nbytes if self.weight.grad else 0.0

    @property
    def handed_on(self) -> int:
        """Width of the model's output: accelerate hands it on in fp32 from under autocast."""
        return FULL if self.autocast else self.width


def head_memory(
    geometry: Geometry, settings: TrainingSettings, how: Arithmetic, weight: Value, hidden_width: int
) -> HeadMemory:
    """What head and loss need for the hidden states of a micro-batch.

    Args:
        weight: the head's (the embedding's where they are tied).
        hidden_width: bytes of an element of the final norm's output.
    """
    ways = {
        "chunked": _chunked,
        "trl_chunked": _trl_chunked,
        "full": _compiled if settings.compiled else _full,
        "full_16bit": _full_16bit,
        "split_16bit": _split_16bit,
        "fused": _fused,
    }
    head = _Head(
        how.tokens,
        how.tokens - how.rows,
        min(how.tokens * settings.supervised_share, how.tokens - how.rows),  # the last position has no next token
        geometry.hidden_size,
        geometry.vocab_size,
        hidden_width,
        how.autocast or weight.width,
        how.autocast is not None,
        weight,
        how.device,
    )
    return ways[settings.loss if geometry.plain_head or settings.loss != "chunked" else "full"](head)


def _chunked(head: _Head) -> HeadMemory:
    """`training.loss`: chunks of 256 supervised tokens; the gradient is made in the forward pass."""
    spread = head.tokens * head.hidden * head.handed_on
    chosen = head.supervised * head.hidden * head.handed_on  # and its gradient, of the same size
    matrix = head.weight.count * FULL if head.weight.grad else 0.0
    forward = (spread if head.handed_on != head.width else 0.0) + 2 * chosen + head.copy + matrix + _chunk(head)
    # Both gradients times the loss's; then the picked rows are put back among zeros.
    narrowed = head.gradient if head.weight.width != FULL else 0.0
    backward = max(2 * (chosen + matrix) + narrowed, chosen + head.gradient + 2 * spread)
    return HeadMemory(forward, chosen + matrix, backward, head.gradient, spread)


def _chunk(head: _Head) -> float:
    """The fullest moment of one chunk: fp32 logits beside the 16-bit ones they are made of or their exponentials, or
    their gradient beside its casts and its product with the hidden states."""
    words = min(float(CHUNK_TOKENS), head.supervised) * head.words
    narrow = head.weight.width if head.weight.width != FULL else 0
    cast = head.compute if head.compute not in (head.weight.width, FULL) else 0
    product = head.weight.count * head.compute if head.weight.grad else 0.0
    # A CPU casts what it adds to another dtype.
    added = head.weight.count * FULL if product and head.compute != FULL and head.device == "cpu" else 0.0
    # The variables of the chunk before hold its gradient until they are set anew.
    before = words * (FULL + narrow) if head.supervised > CHUNK_TOKENS else 0.0
    after_full = min(max(0.0, head.supervised - CHUNK_TOKENS), float(CHUNK_TOKENS)) * head.words
    logits = max(words * 2 * FULL, before + after_full * 2 * FULL)
    return max(logits, words * (FULL + narrow) + product + max(words * cast, added))


def _full(head: _Head) -> HeadMemory:
    """transformers' own: logits of all positions, upcast to fp32, and their log-softmax."""
    logits = head.tokens * head.words
    upcast = logits * FULL if head.compute != FULL else 0.0
    returned = upcast if head.autocast else 0.0  # accelerate casts the output's logits once more
    forward = logits * (head.compute + FULL) + max(upcast, returned) + head.copy
    kept = logits * FULL + head.copy
    # Gradient of the log-probabilities and that of the logits, which is cast back and multiplied out.
    hidden = head.tokens * head.hidden
    products = logits * (FULL + head.compute) + head.copy + head.gradient + hidden * head.compute
    return HeadMemory(forward, kept, max(kept + 2 * logits * FULL, products), head.gradient, hidden * head.width)


def _compiled(head: _Head) -> HeadMemory:
    """The same under torch.compile: upcast and softmax are fused; 16-bit logits are kept, and their gradient made."""
    logits, hidden = head.tokens * head.words, head.tokens * head.hidden
    kept = logits * head.compute + head.copy
    backward = kept + logits * FULL + head.gradient + hidden * head.compute
    return HeadMemory(kept + logits * FULL, kept, backward, head.gradient, hidden * head.width)


def _full_16bit(head: _Head) -> HeadMemory:
    """`cross_entropy` of 16-bit logits, without an upcast: logits, log-softmax, two gradients of that width."""
    logits, hidden = head.tokens * head.words, head.tokens * head.hidden
    kept = 2 * logits * head.compute + head.copy
    products = kept + head.gradient + hidden * head.compute
    backward = max(kept + 2 * logits * head.compute / PIECES, products)
    return HeadMemory(kept, kept, backward, head.gradient, hidden * head.width)


def _split_16bit(head: _Head) -> HeadMemory:
    """Logits kept in 16 bits, their loss made piece by piece in fp32 (torchtune's chunked output)."""
    logits, hidden = head.tokens * head.words, head.tokens * head.hidden
    kept = logits * head.compute + head.copy
    piece = logits / PIECES * (FULL + head.compute)
    return HeadMemory(
        kept + piece, kept, kept + piece + head.gradient + hidden * head.compute, head.gradient, hidden * head.width
    )


def _trl_chunked(head: _Head) -> HeadMemory:
    """TRL's default (`trl.kernels.chunked_logprob`): a buffer of 4,096 tokens × 32,768 words in the compute dtype,
    however few words there are, whose tiles are made again in the backward pass. Triton reads a tile in place; plain
    PyTorch, which also scores positions without labels, makes fp32 logits, probabilities and their products of it: 3
    tiles and a mask of booleans at once going forward, 7 going backward."""
    on_gpu = head.device == "cuda"
    scored = head.supervised if on_gpu else head.shifted
    tokens, words = min(scored, TRL_TILE_TOKENS), min(head.words, TRL_TILE_WORDS)
    forward, backward = (0.0, 0.0) if on_gpu else (3.25, 7.25)
    tile = tokens * words * FULL
    fixed = tokens * TRL_TILE_WORDS * head.compute
    if head.compute != head.weight.width:
        fixed += words * head.hidden * head.compute
    kept = scored * head.hidden * head.width
    gradients = scored * head.hidden * FULL + (head.weight.count * FULL if head.weight.grad else 0.0)
    return HeadMemory(
        kept + fixed + forward * tile,
        kept,
        kept + gradients + fixed + backward * tile,
        head.gradient,
        head.tokens * head.hidden * head.width,
    )


def _fused(head: _Head) -> HeadMemory:
    """Liger's kernel (Hsu et al. 2024, arXiv:2410.10989): chunks whose logits are about as large as the hidden states,
    gradients made in the forward pass."""
    hidden = head.supervised * head.hidden
    matrix = head.weight.count * head.compute if head.weight.grad else 0.0
    kept = hidden * head.compute + matrix
    spread = head.tokens * head.hidden * head.handed_on
    return HeadMemory(
        spread + kept + 2 * hidden * FULL + head.copy, kept, kept + 2 * spread + matrix, head.gradient, spread
    )
