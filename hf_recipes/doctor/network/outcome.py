"""What is printed and returned once the network is measured: the same for the verb and for ranks under a launcher."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hf_recipes.doctor.network.curve import curves
from hf_recipes.doctor.network.measured import Measured
from hf_recipes.doctor.network.options import Chosen
from hf_recipes.doctor.network.report import as_text, as_values
from hf_recipes.doctor.network.verdict import Verdict, sentence_of, weigh, weigh_others


def conclude(measured: Measured, choice: Chosen | None) -> dict[str, Any]:
    """What was measured as plain values, and the verdict on a strategy where one was chosen: ``verdict`` with its
    figures and its sentence.

    Raises:
        UserError: see `weigh`.
    """
    values = as_values(measured)
    if choice is None:
        return values
    known = curves(measured.timings)
    verdict = weigh(choice.strategy, choice.figures, known, choice.compute_seconds)
    others = weigh_others(choice.strategy, choice.figures, known, choice.compute_seconds)
    return {**values, "verdict": _verdict_values(verdict, others)}


def show(concluded: Mapping[str, Any], *, as_json: bool) -> int:
    """Print, and return the exit code: 1 where the strategy cannot live with the network."""
    verdict = concluded.get("verdict")
    if as_json:
        print(json.dumps(dict(concluded), ensure_ascii=False, indent=2))
    else:
        print(as_text(concluded))
        if verdict:
            print(f"\n{verdict['sentence']}")
    return 0 if verdict is None or verdict["ok"] else 1


def _verdict_values(verdict: Verdict, others: list[Verdict]) -> dict[str, Any]:
    return {
        **vars(verdict),
        "share": verdict.share,
        "ok": verdict.ok,
        "sentence": sentence_of(verdict, others),
        "others": {other.strategy: other.share for other in others},
    }
