"""Planned against measured: what the plan said of a run, and what the run took."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.escape import text
from hf_recipes.core.html import note, section, table
from hf_recipes.report.read_run import RunRecord

_ON_CPU = (
    "On a CPU there is no allocator to ask: measured is what the whole process grew by, with libraries loaded on the "
    "way and memory that the C library keeps for later: more than tensors, by hundreds of MiB for a small model."
)


def planned(record: RunRecord) -> str:
    """The section; empty where nothing was planned."""
    memory = record.plan.get("memory")
    if not isinstance(memory, dict) or not isinstance(memory.get("device_bytes"), int | float):
        return ""
    needed, measured = float(memory["device_bytes"]), _measured(record.plan)
    rows = [["memory of a rank at its peak", _gib(needed), _gib(measured), _apart(needed, measured)]]
    parts = _parts(memory)
    body = table(["", "planned", "measured", "planned too much (+) or too little (-)"], rows)
    notes = [parts, _ON_CPU if record.plan["measured"].get("device") == "cpu" else ""] if measured else [parts]
    return section("Planned and measured", body + "".join(note(each) for each in notes if each))


def _measured(plan: dict[str, Any]) -> float | None:
    measured = plan.get("measured")
    size = measured.get("memory_bytes") if isinstance(measured, dict) else None
    return float(size) if isinstance(size, int | float) and size > 0 else None


def _gib(size: float | None) -> str:
    return "" if size is None else f"{size / 2**30:.2f} GiB"


def _apart(needed: float, measured: float | None) -> str:
    return "" if measured is None else f"{needed / measured - 1:+.0%}"


def _parts(memory: dict[str, Any]) -> str:
    """The planned peak by part, in a sentence."""
    phase, phases = memory.get("peak_phase"), memory.get("phases")
    found = phases.get(phase) if isinstance(phases, dict) else None
    if not isinstance(found, dict):
        return ""
    told = [f"{text(name)} {_gib(size)}" for name, size in found.items() if isinstance(size, int | float) and size > 0]
    return f"Planned peak in the phase {text(str(phase).replace('_', ' '))}: {', '.join(told)}."
