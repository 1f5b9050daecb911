"""Which layers a stage gets."""

from __future__ import annotations

from dataclasses import dataclass

from hf_recipes.core.errors import UserError


@dataclass(frozen=True)
class Part:
    """What one stage holds of a decoder: its `layers`, the embedding if it is the first, norm and head if the last."""

    index: int
    stages: int
    layers: range

    @property
    def first(self) -> bool:
        """Whether it takes token ids."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it makes the loss."""
        return self.index == self.stages - 1


def cut_layers(layers: int, stages: int, *, embedding: float = 0.0, head: float = 0.0) -> list[Part]:
    """Cut a decoder so that the fullest stage holds as little as can be; stages may get unequal numbers of layers.

    Where two cuts are alike, later stages get the layer more: with 1F1B the earlier ones keep the activations of more
    micro-batches (Narayanan et al. 2019, PipeDream, §3.2).

    Args:
        layers: of the model, all of one size.
        stages: at most as many.
        embedding: size of what only the first stage holds, in layers.
        head: size of what only the last stage holds, in layers.

    Raises:
        UserError: there are fewer layers than stages.
    """
    if stages > layers:
        raise UserError(
            f"pipeline_parallel_size: {stages} stages cannot share {layers} layers, each needs one at least: give "
            f"{layers} or less."
        )
    sizes = [1.0] * stages
    sizes[0] += embedding
    sizes[-1] += head
    counts = [1] * stages
    for _ in range(layers - stages):
        least = min(range(stages), key=lambda stage: (round(sizes[stage], 9), -stage))
        sizes[least] += 1
        counts[least] += 1
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return [Part(stage, stages, range(starts[stage], starts[stage] + counts[stage])) for stage in range(stages)]


def check_micro_batches(schedule: str, micro_batches: int, stages: int) -> None:
    """Raise `UserError` where a step has fewer micro-batches than 1F1B can start with."""
    if schedule == "1f1b" and micro_batches < stages:
        raise UserError(
            f"pipeline_schedule: 1f1b needs at least as many micro-batches a step as there are stages, {stages}, and "
            f"gradient_accumulation_steps is {micro_batches}: raise it, or take gpipe."
        )


def bubble(stages: int, micro_batches: int) -> float:
    """Share of a step's time in which a stage waits, for equal stages: (p − 1) / (m + p − 1), by GPipe and 1F1B alike
    (Huang et al. 2019, arXiv:1811.06965, §2.3; Narayanan et al. 2021, arXiv:2104.04473, §2.2 gives it over the ideal
    time, (p − 1) / m)."""
    return (stages - 1) / (micro_batches + stages - 1)
