"""How long the test may take, and what fits into that."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = 30.0
PLANNED_SHARE = 0.1
LEAST_ROWS = 8
# A step costs a forward pass and a backward pass of twice its work (Kaplan et al. 2020, arXiv:2001.08361, §2.1).
STEP_IN_FORWARDS = 3.0
# Passes that learning by heart is given room for; it ends earlier when the bound is reached.
PASSES = 16
# Shares of the budget. Comparing 8 answers may take half of it: nothing else shows that they are shuffled.
_ANSWERS, _LEAST_ANSWERS, _RATE, _LEARNING = 0.2, 0.5, 0.2, 0.5
_ANSWER_ROWS, _PROMPTS_EACH = 48, 2


@dataclass(frozen=True)
class Plan:
    """What fits.

    Attributes:
        seconds: the budget.
        answer_rows: rows whose answers are compared; 0 where there is no time for 8.
        rate_steps: steps at the recipe's learning rate.
        learned_rows: rows learned by heart.
    """

    seconds: float
    answer_rows: int
    rate_steps: int
    learned_rows: int


def budget_seconds(planned_seconds: float, least: float = SECONDS, limit: float = float("inf")) -> float:
    """A tenth of what the run is planned to take, at least `least` and at most `limit` seconds."""
    return min(max(least, PLANNED_SHARE * planned_seconds), limit)


def plan_test(seconds: float, row_seconds: float, samples: int) -> Plan:
    """Share a budget out.

    Args:
        seconds: The budget.
        row_seconds: One forward pass of one row.
        samples: Rows there are to learn; as many of them as half of the budget takes through `PASSES` steps, and 8 in
            any case.
    """
    row_seconds = max(row_seconds, 1e-9)
    one_answer = _PROMPTS_EACH * row_seconds
    answers = int(_ANSWERS * seconds / one_answer)
    if LEAST_ROWS * one_answer <= _LEAST_ANSWERS * seconds:
        answers = max(LEAST_ROWS, answers)
    learned = int(_LEARNING * seconds / (PASSES * STEP_IN_FORWARDS * row_seconds))
    rows = min(samples, max(LEAST_ROWS, learned))
    two_steps = (2 * STEP_IN_FORWARDS + 1) * rows * row_seconds
    return Plan(
        seconds=seconds,
        answer_rows=min(samples, answers, _ANSWER_ROWS) if answers >= LEAST_ROWS else 0,
        rate_steps=2 if two_steps <= _RATE * seconds else 1,
        learned_rows=rows,
    )
