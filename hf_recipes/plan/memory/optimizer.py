"""What optimizers keep for each trained parameter, and what a step needs for a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hf_recipes.core.errors import UserError
from hf_recipes.plan.geometry import TensorShape
from hf_recipes.plan.memory.weights import dtype_width, width_of
from hf_recipes.plan.settings import TrainingSettings

# bitsandbytes keeps tensors below this size, and embeddings (the Trainer asks for that), in 32 bits.
_SMALLEST_8BIT = 4096
_BLOCK_8BIT = 256
# On a CPU bitsandbytes steps in PyTorch: states, gradient and weight of one parameter, and a result, in 32 bits
# (`backends/default/ops.py`).
_CPU_8BIT_COPIES = 5


class UnknownOptimizer(UserError):
    """An optimizer whose memory this package cannot tell; it may well train."""


@dataclass(frozen=True)
class OptimizerKind:
    """One of the Trainer's ``optim``.

    Attributes:
        states: tensors of the parameter's shape.
        bits: of their elements; None: the parameter's dtype.
        paged: in memory that moves to the host when the device runs short.
        temporaries: how many tensors of the shape of one parameter a step makes for a moment, in 4 bytes for `wide`.
        whole: whether on a GPU temporaries are of all trained parameters at once (``foreach``).
        factored: rows and columns in place of the matrix (Adafactor, Shazeer and Stern 2018, arXiv:1804.04235).
    """

    states: float
    bits: int | None = None
    paged: bool = False
    temporaries: float = 0.0
    whole: bool = False
    factored: bool = False
    wide: bool = False


_ADAM = OptimizerKind(2, temporaries=2, whole=True)
_KINDS: dict[str, OptimizerKind] = {
    "adamw_torch": _ADAM,
    "adamw_torch_xla": _ADAM,
    "adamw_torch_npu_fused": OptimizerKind(2),
    "adamw_torch_fused": OptimizerKind(2),
    "adamw_anyprecision": OptimizerKind(2, temporaries=2),
    "adafactor": OptimizerKind(0, factored=True, temporaries=2, wide=True),
    "sgd": OptimizerKind(0),
    "adagrad": OptimizerKind(1, temporaries=1, whole=True),
    "rmsprop": OptimizerKind(1, temporaries=1, whole=True),
    "adamw_bnb_8bit": OptimizerKind(2, bits=8),
    "adamw_8bit": OptimizerKind(2, bits=8),
    "paged_adamw_32bit": OptimizerKind(2, bits=32, paged=True),
    "paged_adamw_8bit": OptimizerKind(2, bits=8, paged=True),
    "ademamix": OptimizerKind(3, bits=32),
    "ademamix_8bit": OptimizerKind(3, bits=8),
    "paged_ademamix_32bit": OptimizerKind(3, bits=32, paged=True),
    "paged_ademamix_8bit": OptimizerKind(3, bits=8, paged=True),
    "lion_32bit": OptimizerKind(1, bits=32),
    "lion_8bit": OptimizerKind(1, bits=8),
    "paged_lion_32bit": OptimizerKind(1, bits=32, paged=True),
    "paged_lion_8bit": OptimizerKind(1, bits=8, paged=True),
    "rmsprop_bnb": OptimizerKind(1, bits=32),
    "rmsprop_bnb_32bit": OptimizerKind(1, bits=32),
    "rmsprop_bnb_8bit": OptimizerKind(1, bits=8),
    "adamw_torch_8bit": OptimizerKind(2, bits=8, temporaries=6, wide=True),
    "adamw_torch_4bit": OptimizerKind(2, bits=4, temporaries=6, wide=True),
    "stable_adamw": OptimizerKind(2, temporaries=2),
    "schedule_free_adamw": OptimizerKind(2, temporaries=1, whole=True),
    "schedule_free_radam": OptimizerKind(2, temporaries=1, whole=True),
    "schedule_free_sgd": OptimizerKind(1, temporaries=1, whole=True),
    "grokadamw": OptimizerKind(3, temporaries=3),
}


def optimizer_kind(name: str) -> OptimizerKind:
    """What is known of the Trainer's ``optim``.

    Raises:
        UnknownOptimizer: its memory is not known (projected gradients, layer-wise updates).
    """
    if name not in _KINDS:
        raise UnknownOptimizer(
            f"optim: what '{name}' keeps in memory is not known here: plan with another one, such as adamw_torch_fused."
        )
    return _KINDS[name]


def state_bytes(tensor: TensorShape, settings: TrainingSettings) -> float:
    """Bytes of one trained parameter's optimizer states."""
    kind = optimizer_kind(settings.optimizer)
    if kind.factored:
        return _factored(tensor)
    if settings.optimizer_state_dtype is not None:
        return kind.states * tensor.count * dtype_width(settings.optimizer_state_dtype)
    if kind.bits is None:
        return kind.states * tensor.count * width_of(tensor, settings)
    if kind.bits < 32 and _in_8bit(tensor):
        return kind.states * (tensor.count * kind.bits / 8 + 4 * -(-tensor.count // _BLOCK_8BIT))
    return kind.states * tensor.count * 4


def _in_8bit(tensor: TensorShape) -> bool:
    return tensor.count >= _SMALLEST_8BIT and tensor.part != "embeddings"


def _factored(tensor: TensorShape) -> float:
    """Second moments by row and by column; of vectors whole (transformers' Adafactor without a first moment)."""
    if len(tensor.shape) < 2:
        return 4.0 * tensor.count
    rows, columns = prod(tensor.shape[:-1]), prod(tensor.shape[:-2]) * tensor.shape[-1]
    return 4.0 * (rows + columns)


def step_bytes(trained: Sequence[TensorShape], settings: TrainingSettings, *, device: str) -> float:
    """What a step of the optimizer needs for a moment."""
    if not trained:
        return 0.0
    kind = optimizer_kind(settings.optimizer)
    sizes = [each.count * (4 if kind.wide else width_of(each, settings)) for each in trained]
    if kind.bits == 8 and not kind.temporaries and device == "cpu":  # torchao has its own
        return 4.0 * _CPU_8BIT_COPIES * max((each.count for each in trained if _in_8bit(each)), default=0)
    if kind.whole and device == "cuda":
        return sum(sizes)  # the square roots of all second moments (torch.optim, `foreach`)
    return kind.temporaries * max(sizes)
