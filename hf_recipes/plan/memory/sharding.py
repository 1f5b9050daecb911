"""What one rank holds of weights, gradients and optimizer states, and what sharding needs besides.

ZeRO: Rajbhandari et al. 2020 (arXiv:1910.02054), as DeepSpeed's `stage_1_and_2` and `stage3` do it. FSDP2: PyTorch's
`fully_shard` with accelerate's mixed precision. All in bytes of the fullest rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.layout import LIVE_PARAMETERS, PREFETCH_BUCKET, REDUCE_BUCKET, Layout
from hf_recipes.plan.memory.optimizer import optimizer_kind, state_bytes
from hf_recipes.plan.memory.weights import tensor_bytes, weight_bytes, width_of
from hf_recipes.plan.settings import TrainingSettings

# DDP's first bucket is 1 MiB, the others 25 MiB (torch.nn.parallel): all gradients lie in one of them.
_DDP = ("ddp",)
_ZERO = ("zero1", "zero2", "zero3")


@dataclass(frozen=True)
class RankShare:
    """Bytes that one rank holds through a step.

    Attributes:
        weights, optimizer, gradients: what lasts; `gradients` when the backward pass has ended.
        gradients_left: share of each gradient that stays in the backward pass (1: they are not cut up as they come;
            0: a buffer for them lasts).
        buffers: communication buffers that last.
        forward_buffers, backward_buffers: those of one pass, gathered weights among them.
        step: the optimizer step's temporaries.
        host: by part, what offloading moves to the machine's memory.
        compute: the settings in the dtypes the rank computes in.
    """

    weights: float
    optimizer: float
    gradients: float
    gradients_left: float
    buffers: float
    forward_buffers: float
    backward_buffers: float
    step: float
    host: dict[str, float]
    compute: TrainingSettings


def rank_share(geometry: Geometry, settings: TrainingSettings, layout: Layout) -> RankShare:
    """The share of one rank."""
    kinds = {"none": _whole, "ddp": _ddp, "zero1": _zero, "zero2": _zero, "zero3": _zero3, "fsdp": _fsdp}
    share = kinds[layout.sharding](geometry, settings, layout)
    return _paged(share, settings) if optimizer_kind(settings.optimizer).paged else share


def _trained(geometry: Geometry) -> list[TensorShape]:
    return [tensor for tensor in geometry.tensors if tensor.trained]


def _gradients(tensors: Iterable[TensorShape], settings: TrainingSettings) -> float:
    return float(sum(tensor.count * width_of(tensor, settings) for tensor in tensors))


def _states(tensors: Iterable[TensorShape], settings: TrainingSettings) -> float:
    return sum(state_bytes(tensor, settings) for tensor in tensors)


def _whole(geometry: Geometry, settings: TrainingSettings, layout: Layout) -> RankShare:
    trained = _trained(geometry)
    return RankShare(
        weights=weight_bytes(geometry.tensors, settings),
        optimizer=_states(trained, settings),
        gradients=_gradients(trained, settings),
        gradients_left=1.0,
        buffers=0.0,
        forward_buffers=0.0,
        backward_buffers=0.0,
        step=0.0,
        host={},
        compute=settings,
    )


def _ddp(geometry: Geometry, settings: TrainingSettings, layout: Layout) -> RankShare:
    """Everything on each rank; gradients are copied into buckets of their whole size (accelerate leaves
    ``gradient_as_bucket_view`` off)."""
    whole = _whole(geometry, settings, layout)
    return replace(whole, buffers=whole.gradients)


def deepspeed_settings(settings: TrainingSettings) -> TrainingSettings:
    """What DeepSpeed makes of a job in mixed precision: all weights in 16 bits, no autocast."""
    if settings.autocast_dtype is None:
        return settings
    return replace(
        settings,
        weights_dtype=settings.autocast_dtype,
        trained_dtype=settings.autocast_dtype,
        autocast_dtype=None,
        kbit_preparation=False,
    )


def _zero(geometry: Geometry, settings: TrainingSettings, layout: Layout) -> RankShare:
    """ZeRO-1 and 2: weights whole; fp32 master copy and states in shares, gradients too with 2."""
    compute, shards, trained = deepspeed_settings(settings), layout.shards, _trained(geometry)
    wide = replace(compute, trained_dtype="float32")
    count = sum(tensor.count for tensor in trained)
    gradients = _gradients(trained, compute)
    master = 4.0 * count / shards
    states = _states(trained, wide) / shards
    width = gradients / count if count else 0.0
    bucket = REDUCE_BUCKET * width  # made whole, however small the model is
    sharded = layout.sharding == "zero2"
    # The share of the gradients in fp32 beside that in 16 bits; freed piece by piece.
    step = master if width != 4 else 0.0
    host: dict[str, float] = {}
    optimizer = master + states
    kept = gradients / shards if sharded else gradients
    if layout.offload_optimizer:
        host = {"optimizer": optimizer, "gradients": master}
        optimizer, step = 0.0, 0.0
        kept = 0.0 if sharded else gradients
    return RankShare(
        weights=weight_bytes(geometry.tensors, compute),
        optimizer=optimizer,
        gradients=kept,
        gradients_left=1.0 / shards if sharded else 1.0,
        buffers=0.0,
        forward_buffers=0.0,
        backward_buffers=2 * bucket,  # one is filled while the other is reduced
        step=step,
        host=host,
        compute=compute,
    )


def _zero3(geometry: Geometry, settings: TrainingSettings, layout: Layout) -> RankShare:
    """ZeRO-3: weights in shares too, those of the layers at work gathered. One bucket and a buffer for the gradients'
    share are made at the start and last."""
    compute, shards = deepspeed_settings(settings), layout.shards
    two = _zero(geometry, settings, replace(layout, sharding="zero2"))
    live = min(float(LIVE_PARAMETERS), float(geometry.total)) + min(float(PREFETCH_BUCKET), float(geometry.total))
    gathered = min(max(live * _mean_width(geometry, compute), _largest_unit(geometry, compute)), two.weights)
    weights = two.weights / shards
    host = dict(two.host)
    if layout.offload_weights:
        host["weights"] = weights
        weights = 0.0
    bucket = two.backward_buffers / 2
    return replace(
        two,
        weights=weights,
        gradients_left=0.0,
        buffers=bucket,
        forward_buffers=gathered,
        backward_buffers=gathered + bucket,
        host=host,
    )


def _fsdp(geometry: Geometry, settings: TrainingSettings, layout: Layout) -> RankShare:
    """FSDP2 as accelerate groups it (`fsdp2_prepare_model`): each layer is a unit, which is gathered when it is at
    work; so is the embedding, and last norm and head together, which stay gathered from the loss to the backward pass.
    A tied embedding is of the latter and stays gathered throughout. What was received lives beside what was made of it
    until the next unit is gathered, and in the backward pass a unit's gradients beside their copy that is scattered."""
    shards, trained = layout.shards, _trained(geometry)
    held = replace(settings, trained_dtype="float32") if settings.autocast_dtype else settings
    compute = settings
    if settings.autocast_dtype is not None:
        compute = replace(settings, weights_dtype=settings.autocast_dtype, trained_dtype=settings.autocast_dtype)
    if compute.loss == "chunked":
        compute = replace(compute, loss="trl_chunked")  # the trainer leaves a head that is sharded to TRL's loss
    outside = [each for each in geometry.tensors if each.layer is None]
    tail = weight_bytes([each for each in outside if geometry.tied or each.part != "embeddings"], compute)
    unit = _largest_layer(geometry, compute)
    weights, optimizer = weight_bytes(geometry.tensors, held) / shards, _states(trained, held) / shards
    gradients = _gradients(trained, held) / shards
    host: dict[str, float] = {}
    if layout.offload_weights:
        host = {"weights": weights, "optimizer": optimizer, "gradients": gradients}
        weights = optimizer = gradients = 0.0
    elif layout.offload_optimizer:
        host, optimizer = {"optimizer": optimizer}, 0.0
    trained_unit = (
        _gradients(
            max(_by_layer(geometry).values(), key=lambda tensors: _gradients(_only(tensors), compute), default=[]),
            compute,
        )
        if trained
        else 0.0
    )
    return RankShare(
        weights=weights,
        optimizer=optimizer,
        gradients=gradients,
        gradients_left=1.0 / shards,
        buffers=0.0,
        forward_buffers=tail + 2 * unit if geometry.tied else 2 * max(tail, unit),
        backward_buffers=2 * unit + trained_unit + tail if geometry.tied else max(tail + unit, 2 * unit + trained_unit),
        step=0.0,
        host=host,
        compute=compute,
    )


def _only(tensors: Iterable[TensorShape]) -> list[TensorShape]:
    return [tensor for tensor in tensors if tensor.trained]


def _by_layer(geometry: Geometry) -> dict[int, list[TensorShape]]:
    layers: dict[int, list[TensorShape]] = {}
    for tensor in geometry.tensors:
        if tensor.layer is not None:
            layers.setdefault(tensor.layer, []).append(tensor)
    return layers


def _largest_layer(geometry: Geometry, settings: TrainingSettings) -> float:
    return max((weight_bytes(tensors, settings) for tensors in _by_layer(geometry).values()), default=0.0)


def _largest_unit(geometry: Geometry, settings: TrainingSettings) -> float:
    single = max((tensor_bytes(each, settings) for each in geometry.tensors), default=0.0)
    return max(single, 2 * _largest_layer(geometry, settings))


def _mean_width(geometry: Geometry, settings: TrainingSettings) -> float:
    return weight_bytes(geometry.tensors, settings) / max(1, geometry.total)


def _paged(share: RankShare, settings: TrainingSettings) -> RankShare:
    """bitsandbytes' paged optimizers keep states in unified memory, which moves to the host when the device is full."""
    return replace(
        share, optimizer=0.0, host={**share.host, "optimizer": share.host.get("optimizer", 0.0) + share.optimizer}
    )


def local_geometry(geometry: Geometry, layout: Layout) -> Geometry:
    """The part of a model that tensor and pipeline parallelism leave to one rank: matrices cut along heads and inner
    width (transformers' plans for Llama and its kin), the fullest pipeline stage's layers."""
    if layout.tensor == 1 and layout.pipeline == 1:
        return geometry
    layers = ceil(geometry.layers / layout.pipeline)
    tensors = tuple(
        _cut(tensor, layout.tensor) for tensor in geometry.tensors if tensor.layer is None or tensor.layer < layers
    )
    degree = layout.tensor
    return replace(
        geometry,
        tensors=tensors,
        layers=layers,
        heads=geometry.heads // degree,
        kv_heads=max(1, geometry.kv_heads // degree),
        intermediate_size=geometry.intermediate_size // degree,
        expert_size=geometry.expert_size // degree,
        shared_expert_size=geometry.shared_expert_size // degree,
        vocab_size=geometry.vocab_size if geometry.tied else geometry.vocab_size // degree,
    )


def _cut(tensor: TensorShape, degree: int) -> TensorShape:
    if degree == 1 or len(tensor.shape) < 2 or tensor.part not in ("attention", "mlp", "experts", "head"):
        return tensor
    shape = list(tensor.shape)
    row_wise = any(name in tensor.name for name in ("o_proj", "down_proj", "out_proj", "c_proj", "fc2"))
    axis = len(shape) - 1 if row_wise else len(shape) - 2
    shape[axis] = max(1, shape[axis] // degree)
    return replace(tensor, shape=tuple(shape))
