"""TRL's loss as the planner counts it, against the real function on the CPU, every allocation followed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from memory_moves import highest_memory

from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.memory.head import HeadMemory, head_memory
from hf_recipes.plan.memory.projection import Arithmetic
from hf_recipes.plan.memory.tape import Value
from hf_recipes.plan.settings import TrainingSettings

ROWS, TOKENS, HIDDEN = 2, 129, 64


def _planned(words: int, *, trained: bool, device: str) -> HeadMemory:
    head = TensorShape("lm_head.weight", (words, HIDDEN), "head", None, trained)
    geometry = Geometry("llama", (head,), HIDDEN, 0, 1, 1, 1, HIDDEN, words, True, False)
    settings = TrainingSettings(loss="trl_chunked", micro_batch=ROWS, tokens=TOKENS, supervised_share=0.25)
    how = Arithmetic(None, 0.0, device, float(ROWS * TOKENS), float(ROWS))
    return head_memory(geometry, settings, how, Value(float(head.count), 4, trained, parameter=True), 4)


def _measured(words: int, *, trained: bool) -> tuple[int, int]:
    """Bytes at the fullest moments of the forward and of both passes, the hidden states given in not included."""
    import torch
    from trl.kernels import ChunkedLogProbFunction

    hidden = torch.randn(ROWS * (TOKENS - 1), HIDDEN, requires_grad=True)
    weight = torch.randn(words, HIDDEN, requires_grad=trained)
    targets = torch.zeros(len(hidden), dtype=torch.long)

    def loss_of(backward: bool) -> None:
        found: Any = ChunkedLogProbFunction.apply(
            hidden, weight, None, targets, 1.0, 32768, None, 1.0, ("entropy", "is_top1")
        )
        if backward:
            found[0].sum().backward()

    peaks = []
    for backward in (False, True):
        hidden.grad = weight.grad = None
        peaks.append(highest_memory(partial(loss_of, backward)))
    return peaks[0], peaks[1]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("words", [5000, 40000])  # fewer words than a tile has, and more
def test_trls_loss_takes_what_is_estimated(words: int, trained: bool) -> None:
    planned = _planned(words, trained=trained, device="cpu")
    forward, both = _measured(words, trained=trained)
    assert planned.forward - planned.kept == pytest.approx(forward, rel=0.01)
    assert planned.backward - planned.kept == pytest.approx(both, rel=0.01)


def test_a_frozen_head_gets_no_gradient() -> None:
    frozen, trained = (_planned(5000, trained=each, device="cpu") for each in (False, True))
    assert trained.backward - frozen.backward == 5000 * HIDDEN * 4
    assert frozen.gradient == 0


def test_triton_reads_tiles_in_place_and_scores_labelled_positions_alone() -> None:
    # A quarter of 258 positions: 64.5 rows of 32,768 numbers in the buffer, and as many hidden states kept.
    planned = _planned(40000, trained=False, device="cuda")
    assert planned.forward == 64.5 * (32768 + HIDDEN) * 4
