"""The trace of a row on fake tensors."""

from __future__ import annotations

from typing import Any

from memory_rows import build
from memory_rows.rows import Row, settings_of


def trace_row(row: Row) -> Any:
    """`plan.trace.step.trace_step` of the row's model with this package's loss, as on the CPU."""
    from dataclasses import replace

    from hf_recipes.plan.trace.losses import supervised_only
    from hf_recipes.plan.trace.step import trace_step
    from hf_recipes.training.hidden_states import last_hidden_states
    from hf_recipes.training.loss import chunked_cross_entropy

    plain = replace(row, method="full")  # the trace quantises by itself
    return trace_step(
        lambda: build.build_base(plain),
        settings_of(row),
        attach=lambda model: build.attach(row, model),
        loss=supervised_only(last_hidden_states, chunked_cross_entropy),
        device="cpu",
    )
