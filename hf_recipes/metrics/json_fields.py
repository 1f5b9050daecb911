"""JSON answers held against JSON references, field by field; see `evaluation.scoring`."""

from __future__ import annotations

from collections.abc import Sequence

from hf_recipes.evaluation.scoring import judge, tally
from hf_recipes.metrics.base import TextMetric


class JsonFields(TextMetric):
    """``exact``, ``parses`` and ``fields_right``, and ``field.NAME`` for each field that references have.

    References are texts as well: JSON objects where fields are to be compared; any other is compared as text. What no
    reference asks for is left out.
    """

    needs_references = True

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        scores = tally([judge(answer, reference) for answer, reference in zip(predictions, references, strict=True)])
        named = {"exact": scores.exact, "parses": scores.parses, "fields_right": scores.fields_right}
        fields = {f"field.{name}": value for name, value in scores.by_field.items()}
        return {name: value for name, value in named.items() if value is not None} | fields
