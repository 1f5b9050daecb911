"""What the model answered while it was trained: events of kind "generate", newest first."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.escape import text
from hf_recipes.core.html import folded, note, section
from hf_recipes.report.html import answer, answer_card
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.series import as_number

_UNFOLDED = 1  # steps whose samples are open
_SHOWN = 20  # steps


def samples(record: RunRecord) -> str:
    """The samples by step, with the share of answers that hold to the format; empty where none were drawn."""
    drawn = sorted(record.history.of_kind("generate"), key=lambda event: event["step"], reverse=True)
    if not drawn:
        return ""
    parts = [_step(event, index < _UNFOLDED) for index, event in enumerate(drawn[:_SHOWN])]
    if len(drawn) > _SHOWN:
        parts.append(note(f"{len(drawn) - _SHOWN} earlier steps are in events.jsonl."))
    return section("Sample generations", "".join(parts))


def _step(event: dict[str, Any], is_open: bool) -> str:
    share = as_number(event.get("format_share"))
    kept = f", {share:.0%} of the answers keep to the format" if share is not None and 0 <= share <= 1 else ""
    given = event.get("samples")
    answers = [sample for sample in given if isinstance(sample, dict)] if isinstance(given, list) else []
    body = "".join(map(_sample, answers)) or note("no sample")
    title = f"step {event['step']}{kept}"
    return folded(title, body) if not is_open else f"<h3>{text(title)}</h3>{body}"


def _sample(sample: dict[str, Any]) -> str:
    cards = [answer_card("answer", sample.get("answer"), _mark(sample))]
    if sample.get("reference") is not None:
        cards.append(answer_card("reference", sample["reference"]))
    return answer(sample.get("prompt", ""), cards)


def _mark(sample: dict[str, Any]) -> str:
    if sample.get("ok") is True:
        return ' <span class="right">✓ keeps to the format</span>'
    if sample.get("ok") is False:
        why = f": {text(sample['why'])}" if sample.get("why") else ""
        return f' <span class="wrong">✗ breaks the format{why}</span>'
    return ""
