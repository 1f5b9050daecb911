"""Forward and backward pass of one micro-batch, segment by segment: embedding, layers, head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.memory.attention import mask_bytes
from hf_recipes.plan.memory.decoder import Layer, decoder_layer
from hf_recipes.plan.memory.head import HeadMemory, head_memory
from hf_recipes.plan.memory.modules import modules_of
from hf_recipes.plan.memory.operations import FULL, rms_norm
from hf_recipes.plan.memory.projection import Arithmetic
from hf_recipes.plan.memory.tape import ACTIVATIONS, COPIES, GRADIENTS, Segment, Tape, Value
from hf_recipes.plan.memory.weights import dtype_width, width_of
from hf_recipes.plan.settings import TrainingSettings

LOGITS = "logits"


@dataclass(frozen=True)
class StepMemory:
    """Bytes by part at the fullest moments of one micro-batch, weights and states not included.

    Attributes:
        forward, backward: the passes.
        inference: a forward pass without gradients, its loss included.
        layer_input: hidden states that one layer is given.
    """

    forward: Counter[str]
    backward: Counter[str]
    inference: Counter[str]
    layer_input: float


@dataclass
class _Walk:
    """Running sums while the segments are played one after the other."""

    kept: Counter[str] = field(default_factory=Counter)
    fullest: Counter[str] = field(default_factory=Counter)

    def see(self, moment: Counter[str]) -> None:
        total = self.kept + moment
        if sum(total.values()) > sum(self.fullest.values()):
            self.fullest = total


def _add(parts: Counter[str], part: str, size: float) -> None:
    parts[part] += size  # type: ignore[assignment]  # a counter of bytes, of which a share need not be whole


@dataclass(frozen=True)
class LayerMemory:
    """A layer's segment, and what checkpointing makes of it: bytes of its input and of attention's result, the fullest
    moment without gradients, and bytes of autocast's copies that stay until the forward pass ends."""

    segment: Segment
    plain_forward: Counter[str]
    input_bytes: float
    attention_bytes: float
    cached: float


def step_memory(
    geometry: Geometry, settings: TrainingSettings, *, device: str, gradients_left: float = 1.0
) -> StepMemory:
    """Play a micro-batch.

    Args:
        gradients_left: share of a tensor's gradient that the backward pass leaves behind (0: it is added to that of an
            earlier one; less than 1: the others' shares are sent away as it comes).
    """
    how = arithmetic(geometry, settings, device)
    embedding = next((each for each in geometry.tensors if each.part == "embeddings"), None)
    width = dtype_width(settings.weights_dtype) if embedding is None else width_of(embedding, settings)
    hidden = how.tokens * geometry.hidden_size * width
    embedding_trained = embedding is not None and embedding.trained
    layers = _layers(geometry)
    checkpointed = [_is_checkpointed(settings, index) for index in range(len(layers))]
    needs_grad = (
        embedding_trained
        or settings.checkpointing != "off"
        or any(each.trained for each in geometry.tensors if each.part == "adapter" and each.layer is None)
    )
    memories: list[LayerMemory] = []
    for tensors in layers:
        memories.append(_layer_memory(_signature(tensors), width, needs_grad, geometry_key(geometry), settings, how))
        needs_grad = needs_grad or any(each.trained for each in tensors)
    norm = _final_norm(geometry, settings, how, width, needs_grad)
    head = _head(geometry, settings, how, width)
    shared = _shared_bytes(geometry, settings, how, width)

    walk = _Walk(Counter({ACTIVATIONS: shared}))
    walk.see(Counter({ACTIVATIONS: hidden}))
    cached: Counter[str] = Counter()
    for memory, again in zip(memories, checkpointed, strict=True):
        moment = memory.plain_forward if again else memory.segment.forward
        walk.see(moment + cached)
        walk.kept += _kept(memory, settings, again)
        _add(cached, COPIES, memory.cached if not again else _copies(memory))
    walk.see(norm.forward + cached)
    walk.kept += norm.kept
    forward_kept = Counter(walk.kept)
    walk.see(Counter({LOGITS: head.forward, ACTIVATIONS: norm_output(geometry, how, width)}))
    _add(walk.kept, LOGITS, head.kept)

    back = _Walk(Counter(walk.kept))
    _add(back.kept, LOGITS, -head.kept)
    back.see(Counter({LOGITS: head.backward}))
    grads = Counter({GRADIENTS: head.gradient * gradients_left})
    back.kept = forward_kept - norm.kept + grads
    back.see(norm.backward + Counter({ACTIVATIONS: head.grad_hidden}) if not norm.backward else norm.backward)
    _add(back.kept, GRADIENTS, norm.gradients * gradients_left)
    for memory, again in zip(reversed(memories), reversed(checkpointed), strict=True):
        back.kept -= _kept(memory, settings, again)
        segment = memory.segment
        if again:
            replay = segment.forward + Counter({ACTIVATIONS: memory.input_bytes})
            _add(replay, ACTIVATIONS, _saved_attention(memory, settings))
            back.see(replay)
        back.see(segment.backward)
        _add(back.kept, GRADIENTS, segment.gradients * gradients_left)
    if embedding is not None and embedding_trained:
        # The gradient of a tied head that comes as a transposed view is not added to in place.
        copies = 2 if geometry.tied and settings.loss not in ("chunked", "fused", "trl_chunked") else 1
        back.see(Counter({GRADIENTS: copies * embedding.count * width, ACTIVATIONS: hidden}))
    inference = _inference(memories, norm, head.forward, shared, hidden)
    return StepMemory(walk.fullest, back.fullest, inference, hidden)


def arithmetic(geometry: Geometry, settings: TrainingSettings, device: str) -> Arithmetic:
    """How the step computes."""
    return Arithmetic(
        autocast=None if settings.autocast_dtype is None else dtype_width(settings.autocast_dtype),
        lora_dropout=settings.lora_dropout,
        device=device,
        tokens=float(settings.micro_batch * settings.tokens),
        rows=float(settings.micro_batch),
        compiled=settings.compiled,
        keeps_input=settings.quantized_keeps_input,
    )


def norm_output(geometry: Geometry, how: Arithmetic, width: int) -> float:
    """The hidden states the head is given."""
    return how.tokens * geometry.hidden_size * width


def _layers(geometry: Geometry) -> list[tuple[TensorShape, ...]]:
    found: dict[int, list[TensorShape]] = {}
    for tensor in geometry.tensors:
        if tensor.layer is not None:
            found.setdefault(tensor.layer, []).append(tensor)
    return [tuple(found[index]) for index in sorted(found)]


def _is_checkpointed(settings: TrainingSettings, index: int) -> bool:
    ways = {"off": 0, "every_4": 4, "every_3": 3, "every_2": 2, "selective": 1, "all": 1, "host": 1}
    every = ways[settings.checkpointing]
    return bool(every) and index % every == 0


Signature = tuple[tuple[str, tuple[int, ...], str, bool, bool], ...]


def _signature(tensors: Sequence[TensorShape]) -> Signature:
    """A layer's tensors but for its number, so that equal layers are played once."""
    return tuple(
        (each.name.replace(f".{each.layer}.", ".0.", 1), each.shape, each.part, each.trained, each.linear)
        for each in tensors
    )


def geometry_key(geometry: Geometry) -> Geometry:
    """The geometry without its tensors: small enough to be a key."""
    return replace(geometry, tensors=())


@cache
def _layer_memory(
    signature: Signature,
    width: int,
    needs_grad: bool,
    geometry: Geometry,
    settings: TrainingSettings,
    how: Arithmetic,
) -> LayerMemory:
    tensors = [TensorShape(name, shape, part, 0, trained, linear) for name, shape, part, trained, linear in signature]
    tape = Tape()
    x = Value(how.tokens * geometry.hidden_size, width, grad=needs_grad)
    out = decoder_layer(tape, x, Layer(modules_of(tensors, settings)), geometry, settings, how)
    segment = tape.run(out, inputs=(x,))
    attention = how.tokens * geometry.heads * (geometry.head_dim * (how.autocast or width) + FULL)
    return LayerMemory(segment, tape.run_without_grad(out, inputs=(x,)), x.nbytes, attention, tape.cached_unkept)


def _copies(memory: LayerMemory) -> float:
    return memory.cached + memory.segment.kept[COPIES]


def _kept(memory: LayerMemory, settings: TrainingSettings, again: bool) -> Counter[str]:
    if not again:
        return memory.segment.kept
    if settings.checkpointing == "host":
        return Counter()
    return Counter({ACTIVATIONS: memory.input_bytes + _saved_attention(memory, settings)})


def _saved_attention(memory: LayerMemory, settings: TrainingSettings) -> float:
    return memory.attention_bytes if settings.checkpointing == "selective" else 0.0


def _final_norm(
    geometry: Geometry, settings: TrainingSettings, how: Arithmetic, width: int, needs_grad: bool
) -> Segment:
    tensor = next((each for each in geometry.tensors if each.part == "norms" and each.layer is None), None)
    tape = Tape()
    x = Value(how.tokens * geometry.hidden_size, width, grad=needs_grad)
    weight = None
    if tensor is not None:
        weight = Value(float(tensor.count), width_of(tensor, settings), tensor.trained, parameter=True)
    return tape.run(rms_norm(tape, x, weight, geometry.hidden_size, fused=how.compiled), inputs=(x,))


def _head(geometry: Geometry, settings: TrainingSettings, how: Arithmetic, width: int) -> HeadMemory:
    parts = ("head",) if not geometry.tied else ("embeddings",)
    candidates = [each for each in geometry.tensors if each.part in parts and len(each.shape) == 2]
    tensor = next((each for each in candidates if each.trained), candidates[0] if candidates else None)
    count = float(geometry.vocab_size * geometry.hidden_size)
    trained = tensor is not None and tensor.trained
    weight = Value(count, width if tensor is None else width_of(tensor, settings), trained, parameter=True)
    return head_memory(geometry, settings, how, weight, width)


def _shared_bytes(geometry: Geometry, settings: TrainingSettings, how: Arithmetic, width: int) -> float:
    """Token ids, labels and rotary tables, and masks, which all layers share."""
    tables = 2 * how.tokens / how.rows * geometry.head_dim * width
    return 16 * how.tokens + tables + mask_bytes(settings, how, width)


def _inference(
    memories: Sequence[LayerMemory], norm: Segment, head_forward: float, shared: float, hidden: float
) -> Counter[str]:
    layer = max((sum(each.plain_forward.values()) for each in memories), default=0.0)
    return Counter({ACTIVATIONS: shared + max(layer, hidden), LOGITS: head_forward})


def generation_layer(geometry: Geometry, settings: TrainingSettings, rows: int) -> float:
    """A layer's fullest moment for one new token a row."""
    one = replace(settings, micro_batch=rows, tokens=1)
    return sum(step_memory(geometry, one, device="cuda").inference.values())
