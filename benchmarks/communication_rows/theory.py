"""What a strategy should send: the ZeRO paper's multiples of Ψ, and what `hf-recipes doctor --network` reckons with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from communication_rows.cells import LORA_R, MICRO, Cell

# Below these bytes a message is talk: norms, token counts, flags. It is counted apart.
TALK_BYTES = 4096


@dataclass(frozen=True)
class Sent:
    """What one rank puts on the wire in a step, and in how many messages."""

    bytes: float
    messages: int
    talk_bytes: float
    talk_messages: int


def ring_bytes(collective: str, whole_bytes: float, ranks: int) -> float:
    """What a rank sends where the ranks stand in a ring (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002): a
    gather or a reduce-scatter passes (n − 1)/n of the whole, an all-reduce is both, a broadcast or a reduction to one
    passes as much on the mean, and a message between two ranks is sent once.

    Args:
        collective: its name.
        whole_bytes: of the tensor that all ranks hold before or after.
        ranks: of the group.
    """
    if collective == "send":
        return whole_bytes
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks * whole_bytes


def sent(messages: Iterable[Sequence[Any]]) -> Sent:
    """Sum up one rank's messages: ``[collective, bytes, elements, dtype, ranks, count]`` each."""
    real, talk = [0.0, 0], [0.0, 0]
    for collective, size, _, _, ranks, number in messages:
        into = talk if size < TALK_BYTES else real
        into[0] += number * ring_bytes(collective, size, ranks)
        into[1] += number
    return Sent(real[0], int(real[1]), talk[0], int(talk[1]))


def reckoned_bytes(cell: Cell, model: Path, tokens: int) -> float | None:
    """What the doctor says that a rank sends in a step; None for what it does not weigh.

    Args:
        cell: the run.
        model: directory with its config.
        tokens: of a row, padding included.
    """
    from hf_recipes.doctor.network.traffic import WEIGHED, messages_of

    if cell.strategy not in WEIGHED or cell.sizes:
        return None
    figures = figures_of_cell(cell, model, tokens)
    return sum(
        ring_bytes(each.collective, each.total_bytes, cell.ranks) for each in messages_of(cell.strategy, figures)
    )


def paper_bytes(cell: Cell, model: Path, tokens: int) -> float | None:
    """The volume by the papers; None where they say nothing of such a layout.

    ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, section 7.1): Ψ to reduce gradients and Ψ to gather weights, and
    for stage 3 and FSDP the weights gathered once more. Where a step has several passes, stage 3 and FSDP do all of it
    in each, and stage 2 reduces in each. Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3): four
    all-reduces of a hidden state a layer. A pipeline: a hidden state and its gradient a micro-batch and border.

    Args:
        cell: the run.
        model: directory with its config.
        tokens: of a row, padding included.
    """
    figures = figures_of_cell(cell, model, tokens)
    ring = (cell.ranks - 1) / cell.ranks
    if cell.sizes:
        return None
    if cell.strategy == "tp":
        return float(2 * ring * cell.passes * 4 * figures.layers * figures.hidden_bytes)
    if cell.strategy == "pp":
        return float(2 * ring * cell.passes * figures.hidden_bytes)
    if cell.strategy in ("zero3", "fsdp"):
        return float(ring * cell.passes * (2 * figures.weight_bytes + figures.gradient_bytes))
    if cell.strategy == "ddp":
        return float(ring * 2 * figures.wide_gradient_bytes)
    reduced = cell.passes if cell.strategy == "zero2" else 1
    return float(ring * (1 + reduced) * figures.gradient_bytes)


def figures_of_cell(cell: Cell, model: Path, tokens: int) -> Any:
    """The run in the doctor's terms, by way of the plan."""
    from hf_recipes.cli.network_choice import figures_of
    from hf_recipes.plan.read_geometry import read_geometry
    from hf_recipes.plan.settings import TrainingSettings
    from hf_recipes.plan.strategy.step_cost import work_of

    wide = cell.dtype == "fp32"
    settings = TrainingSettings(
        method=cell.method,
        weights_dtype="float32" if wide or cell.method == "full" else "bfloat16",
        trained_dtype="float32",
        autocast_dtype=None if wide else "bfloat16",
        micro_batch=MICRO,
        tokens=tokens,
        accumulation=cell.passes,
        checkpointing="all" if cell.checkpointing else "off",
    )
    figures = figures_of(work_of(read_geometry(str(model), _attach(cell)), settings), settings)
    return replace(figures, hidden_bytes=figures.hidden_bytes * (2 if wide else 1))  # a plan is for 16 bits


def _attach(cell: Cell) -> Any:
    if cell.method == "full":
        return None
    from hf_recipes.models.methods.lora import LoraSettings, attach_lora

    settings = LoraSettings(r=LORA_R, alpha=2 * LORA_R, dropout=0.0)
    return lambda model: attach_lora(model, settings)
