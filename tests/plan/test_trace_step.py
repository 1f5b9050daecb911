"""The traced step against real steps on the CPU's allocator, phase by phase."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

# Shape, method and what else is set; each has operations of its own.
QUICK = [
    {"method": "full", "batch": 2, "tokens": 64},
    {"method": "lora", "batch": 2, "tokens": 64, "dropout": 0.05, "targets": ("all-linear",), "checkpointing": "all"},
]
MORE = [
    {"method": "full", "batch": 2, "tokens": 64, "attention": "eager", "accumulation": 2},
    {"method": "full", "batch": 1, "tokens": 64, "autocast": True},
    {"method": "full", "batch": 1, "tokens": 64, "optimizer": "adamw_8bit"},
    {"method": "dora", "batch": 2, "tokens": 64},
    {"method": "qlora", "batch": 2, "tokens": 64, "targets": ("all-linear",)},
    {"method": "lora", "batch": 2, "tokens": 64, "supervised": 0.3},
    {"shape": "qwen3-moe-30m", "method": "full", "batch": 1, "tokens": 64},
]


def _apart(values: dict) -> dict[str, float]:
    """Relative errors of the traced phases against the measured ones."""
    from memory_rows.measure import measure_apart
    from memory_rows.rows import Row
    from memory_rows.tracing import trace_row

    row = Row(**{"shape": "llama-1m", **values})
    measured, traced = measure_apart(row)["phases"], trace_row(row).memory.phases
    return {phase: sum(traced[phase].values()) / measured[phase] - 1 for phase in ("forward", "backward")}


@pytest.mark.trials
@pytest.mark.parametrize("values", QUICK + MORE, ids=lambda values: " ".join(map(str, values.values())))
def test_a_trace_is_what_the_allocator_measures(values: dict) -> None:
    # Below 2 %: what is left are batches in the making and quantised layers' small tables.
    assert all(abs(error) < 0.02 for error in _apart(values).values())


def _traced(**values: object) -> dict[str, dict[str, float]]:
    from memory_rows.rows import Row
    from memory_rows.tracing import trace_row

    return trace_row(Row(**{"shape": "llama-1m", "batch": 2, "tokens": 64, **values})).memory.phases  # type: ignore[arg-type]


def test_parts_of_a_full_fine_tune_are_those_of_its_parameters() -> None:
    phases = _traced(method="full")
    # llama-1m: 4096·96 + 6·(4·96² + 3·96·256 + 2·96) + 96 = 1,058,016 parameters in fp32, and 8 rotary frequencies in
    # two buffers.
    parameters = 4 * 1_058_016
    step = phases["optimizer_step"]
    assert step["weights"] == parameters + 2 * 8 * 4
    assert step["gradients"] == parameters
    assert step["optimizer"] == pytest.approx(2 * parameters, abs=1000)  # and a step counter each


def test_checkpointing_keeps_less_in_the_forward_pass() -> None:
    assert _traced(checkpointing="all")["forward"]["activations"] < _traced()["forward"]["activations"] / 2


def test_a_lora_step_has_gradients_of_the_adapter_alone() -> None:
    # r 16 on q and v of six layers: 2 · 2 · 16 · 96 fp32 values each.
    assert _traced(method="lora")["optimizer_step"]["gradients"] == 6 * 2 * 2 * 16 * 96 * 4
