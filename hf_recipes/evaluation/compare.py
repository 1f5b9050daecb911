"""Scores of one model in memory, and the table of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.generation import generate_answers
from hf_recipes.core.tables import render_table
from hf_recipes.evaluation.general import TextLoss, mean_loss
from hf_recipes.evaluation.likelihood import TokenisedRow
from hf_recipes.evaluation.rows import DomainRow
from hf_recipes.evaluation.scoring import DomainScores, Verdict, judge, tally
from hf_recipes.evaluation.suite import EvaluationSuite


@dataclass(frozen=True)
class Scores:
    """One model on domain rows and general text. ``cut`` counts answers that met the token limit without ending; paces
    are None without an answer."""

    domain: DomainScores
    general: TextLoss | None
    answers: list[str]
    verdicts: list[Verdict]
    cut: int
    seconds_per_answer: float | None
    tokens_per_second: float | None


def evaluate_model(
    model: Any,
    tokenizer: Any,
    suite: EvaluationSuite,
    general_rows: Sequence[TokenisedRow] = (),
    rows: Sequence[DomainRow] | None = None,
) -> Scores:
    """Answer the suite's domain rows, judge the answers, and take the loss on `general_rows`.

    Args:
        model: a causal LM or PEFT model, with its adapters on or off as they are to be evaluated.
        tokenizer: with the chat template that the model was trained with.
        general_rows: tokenised general text; none leaves the loss out.
        rows: domain rows already read by ``suite.rows()``, so that two models answer one reading of the file.
    """
    rows = suite.rows() if rows is None else rows
    validator = suite.validator()
    generations = generate_answers(
        model,
        tokenizer,
        [row.messages for row in rows],
        max_new_tokens=suite.max_new_tokens,
        batch_size=suite.batch_size,
        stop=suite.stop,
    )
    verdicts = [judge(answer, row.reference, validator) for answer, row in zip(generations.answers, rows, strict=True)]
    return Scores(
        domain=tally(verdicts),
        general=mean_loss(model, general_rows),
        answers=generations.answers,
        verdicts=verdicts,
        cut=generations.cut,
        seconds_per_answer=generations.seconds_per_answer if rows else None,
        tokens_per_second=generations.tokens_per_second if rows else None,
    )


def render(table: Sequence[Sequence[str]]) -> str:
    """The ``table`` of an evaluation.json, base and tuned only, as text for the terminal."""
    return render_table(("", "base", "tuned"), table)
