"""IFEval as a metric; see `evaluation.judges.instructions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_recipes.evaluation.judges.instructions import check_instructions
from hf_recipes.metrics.base import TextMetric, shares


class InstructionFollowing(TextMetric):
    """The four accuracies of IFEval (Zhou et al. 2023): of prompts and of instructions, strict and lenient.

    ``compute(predictions=…, instructions=…)`` takes a row of IFEval for each prediction, with
    ``instruction_id_list`` and ``kwargs``.
    """

    def _compute(self, predictions: Sequence[str], instructions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        judged = [check_instructions(text, [row]) for text, row in zip(predictions, instructions, strict=True)]
        return shares(
            {
                "prompt_strict": [all(verdict.strict for verdict in verdicts) for verdicts in judged],
                "prompt_lenient": [all(verdict.lenient for verdict in verdicts) for verdicts in judged],
                "instruction_strict": [verdict.strict for verdicts in judged for verdict in verdicts],
                "instruction_lenient": [verdict.lenient for verdicts in judged for verdict in verdicts],
            }
        )
