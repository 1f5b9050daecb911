"""What a strategy sends in one optimizer step: plain figures of a job in, messages out.

Data-parallel strategies by the ZeRO paper (Rajbhandari et al. 2020, arXiv:1910.02054, section 7), where Ψ is the bytes
of the gradients: plain data parallelism passes 2Ψ, stage 3 and FSDP 3Ψ. Stages 1 and 2 would pass 2Ψ too; DeepSpeed
reduces their gradients to all ranks (`use_multi_rank_bucket_allreduce`), which makes 3Ψ. Tensor parallelism reduces a
hidden state twice a layer and direction (Shoeybi et al. 2019, arXiv:1909.08053, section 3); transformers reduces the
gradient of each of the five projections that share their input (query, key, value, gate, up), which makes seven a
layer. Held against counts of the collectives by `benchmarks/communication.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.doctor.network.curve import Collective

DDP_BUCKET_BYTES = 25 * 2**20  # torch's bucket_cap_mb
ZERO_BUCKET = 50_000_000  # elements: reduce_bucket_size of the DeepSpeed configurations that `plan --write` writes


@dataclass(frozen=True)
class StepFigures:
    """What decides how much is sent.

    Attributes:
        gradient_bytes: of all gradients, as sharded strategies reduce them.
        wide_gradient_bytes: of all gradients, as DDP reduces them: in the dtype of the weights that are trained.
        weight_bytes: of all weights, as a sharded strategy gathers them.
        bytes_per_value: of one gradient element.
        passes: micro-batches of a step.
        layers: of the model; 1 where it is not known.
        hidden_bytes: of the hidden state of one micro-batch (rows × tokens × width × bytes); 0 where it is not known.
        gathers: how often a pass computes with the weights: 2, and 3 with activation checkpointing.
    """

    gradient_bytes: float
    wide_gradient_bytes: float
    weight_bytes: float
    bytes_per_value: float = 2.0
    passes: int = 1
    layers: int = 1
    hidden_bytes: float = 0.0
    gathers: float = 2.0


@dataclass(frozen=True)
class Messages:
    """What one collective is given in a step: `total_bytes` in pieces of `size_bytes` at most."""

    collective: Collective
    total_bytes: float
    size_bytes: float

    @property
    def passed_bytes(self) -> float:
        """What a rank of many passes on: an all-reduce is a reduce-scatter and a gather."""
        return self.total_bytes * (2 if self.collective == "all_reduce" else 1)

    @property
    def count(self) -> float:
        """Of pieces; the last may be smaller."""
        return self.total_bytes / self.size_bytes if self.size_bytes else 0.0


def _ddp(figures: StepFigures) -> list[Messages]:
    return [_cut("all_reduce", figures.wide_gradient_bytes, DDP_BUCKET_BYTES)]


def _zero(reduces: Callable[[StepFigures], int]) -> Callable[[StepFigures], list[Messages]]:
    def messages(figures: StepFigures) -> list[Messages]:
        bucket = ZERO_BUCKET * figures.bytes_per_value
        return [
            _cut("all_reduce", reduces(figures) * figures.gradient_bytes, bucket),
            _cut("all_gather", figures.gradient_bytes, bucket),
        ]

    return messages


def _fsdp(figures: StepFigures) -> list[Messages]:
    # A checkpointed layer is computed again once its weights are there for its backward pass: gathered no third time.
    return _sharded(replace(figures, gathers=2.0))


def _sharded(figures: StepFigures) -> list[Messages]:
    layer = 1 / max(1, figures.layers)  # a layer at a time
    return [
        _cut("all_gather", figures.passes * figures.gathers * figures.weight_bytes, figures.weight_bytes * layer),
        _cut("reduce_scatter", figures.passes * figures.gradient_bytes, figures.gradient_bytes * layer),
    ]


def _tensor(figures: StepFigures) -> list[Messages]:
    if not figures.hidden_bytes:
        raise UserError(
            "tp sends hidden states, not weights: give their size too (--layers, --hidden_size and --tokens)."
        )
    times = 7 + 2 * (figures.gathers - 2)  # twice in the forward pass, five in the backward, twice where recomputed
    return [_cut("all_reduce", figures.passes * times * figures.layers * figures.hidden_bytes, figures.hidden_bytes)]


# Strategy of a recipe → its messages. Offloading sends as much: it goes to the host, not to other ranks.
_MESSAGES: dict[str, Callable[[StepFigures], list[Messages]]] = {
    "ddp": _ddp,
    "zero1": _zero(lambda figures: 1),
    "zero2": _zero(lambda figures: figures.passes),
    "zero3": _sharded,
    "fsdp": _fsdp,
    "tp": _tensor,
    "zero2_offload": _zero(lambda figures: figures.passes),
    "zero3_offload": _sharded,
    "zero3_offload_all": _sharded,
    "fsdp_offload": _fsdp,
}
WEIGHED: tuple[str, ...] = tuple(_MESSAGES)
COMPARED = ("ddp", "zero2", "fsdp")  # what is named as a way out


def messages_of(strategy: str, figures: StepFigures) -> list[Messages]:
    """All messages of one optimizer step.

    Raises:
        UserError: the strategy is not weighed here, or a figure that it needs is missing.
    """
    if strategy not in _MESSAGES:
        raise UserError(
            f"strategy: '{strategy}' is not weighed against a network{nearest(strategy, WEIGHED)}: give one of "
            f"{', '.join(WEIGHED)}."
        )
    return [message for message in _MESSAGES[strategy](figures) if message.total_bytes > 0]


def _cut(collective: Collective, total_bytes: float, size_bytes: float) -> Messages:
    return Messages(collective, total_bytes, min(total_bytes, size_bytes))
