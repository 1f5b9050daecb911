"""What the overfit test said before the run."""

from __future__ import annotations

from hf_recipes.core.escape import text
from hf_recipes.core.html import section
from hf_recipes.report.read_run import RunRecord


def overfit_result(record: RunRecord) -> str:
    """The section; empty where there was no test."""
    told = [event["sentence"] for event in record.history.of_kind("overfit") if isinstance(event.get("sentence"), str)]
    return section("Before the run", f"<p>{text(told[-1])}</p>") if told else ""
