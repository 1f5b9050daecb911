"""The regression gate: conditions that an evaluation must meet, such as ``format>0.95`` or ``exact>=base-0.02``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hf_recipes.core.errors import UserError, nearest

# The rise of the loss on general text. As a condition on the loss itself `general_loss<0.1` could never be met.
FORGETTING = "forgetting"
ALIASES = {"general_loss": FORGETTING}
_GREATEST_RISE = 1.0  # nats per token: e times less likely text is ruin, so such a limit was meant for the loss itself
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*%?"
_CONDITION = re.compile(
    r"(?:(?P<judged>[\w.-]+):)?(?P<name>[^\s<>=,:]+(?: +[^\s<>=,:]+)*)\s*(?P<sign><=|>=|<|>)\s*(?P<limit>[^<>=]+)"
)
_LIMIT = re.compile(
    rf"(?P<side>[A-Za-z_][\w.-]*?)(?:\s*(?P<offset>[+-]\s*(?:\d+\.?\d*|\.\d+)\s*%?))?|(?P<number>{_NUMBER})"
)

Figures = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Condition:
    """``[judged:]name sign limit``, the limit being a number, or another model's figure plus `offset`.

    Args:
        text: as it was written.
        judged: the model whose figure is judged; None for the run's result.
        name: of a figure.
        sign: ``<``, ``<=``, ``>`` or ``>=``.
        offset: the limit, or what is added to `side`'s figure.
        side: the model to compare with; None where the limit is a number.
        limit: as it was written.
    """

    text: str
    judged: str | None
    name: str
    sign: str
    offset: float
    side: str | None = None
    limit: str = ""

    def among(self, sides: Collection[str]) -> Condition:
        """The same condition, once the models are known: `run-2` is the model of that name where there is one, and
        else `run` minus 2."""
        return replace(self, side=self.limit, offset=0.0) if self.limit in sides else self


@dataclass(frozen=True)
class Outcome:
    """Whether a condition holds, and a sentence with the figures."""

    condition: str
    holds: bool
    sentence: str


def parse_gate(text: str) -> tuple[Condition, ...]:
    """Read conditions separated by commas.

    Numbers are shares from 0 to 1 (``95%`` is 0.95), nats per token, tokens or seconds, as the figure is. ``tuned`` is
    judged unless ``NAME:`` stands before the figure; the limit may be a model's figure (``base``, ``base-0.02``).

    Raises:
        UserError: a condition of another form.
    """
    conditions = tuple(_condition(part.strip()) for part in text.split(",") if part.strip())
    if not conditions:
        raise UserError("The gate is empty: write conditions such as 'format>0.95,forgetting<0.1' (in quotes).")
    return conditions


def check_names(conditions: Iterable[Condition], known: Iterable[str], sides: Sequence[str] | None = None) -> None:
    """Refuse a condition on a figure or a model that the evaluation does not have; `sides` is None where the
    models are not known yet.

    Raises:
        UserError: with the nearest name.
    """
    names = [*known, *ALIASES] if FORGETTING in known else list(known)
    for condition in conditions:
        if condition.name not in names:
            told = ", ".join(names)
            near = nearest(condition.name, names)
            raise UserError(f"The gate's '{condition.text}' names no figure of this evaluation{near}: it has {told}.")
        for side in (condition.judged, condition.among(sides or ()).side):
            if side is not None and sides is not None and side not in sides:
                raise UserError(
                    f"The gate's '{condition.text}' names no model{nearest(side, sides)}: there are {', '.join(sides)}."
                )


def check_gate(conditions: Iterable[Condition], figures: Figures, judged: str) -> list[Outcome]:
    """Judge each condition on `figures`, by name and model; a figure without a value fails.

    Args:
        judged: the model judged where a condition names none.
    """
    return [_outcome(condition, figures, condition.judged or judged) for condition in conditions]


def _outcome(condition: Condition, figures: Figures, judged: str) -> Outcome:
    name = ALIASES.get(condition.name, condition.name)
    condition = condition.among(figures.get(name, {}))
    value = figures.get(name, {}).get(judged)
    limit, against = condition.offset, f"{condition.offset:g}"
    if condition.side is not None:
        other = figures.get(name, {}).get(condition.side)
        limit = float("nan") if other is None else other + condition.offset
        plus = f" {'+' if condition.offset > 0 else '-'} {abs(condition.offset):g}" if condition.offset else ""
        against = f"{limit:.4g} ({condition.side}{plus})"
    holds = value is not None and _COMPARE[condition.sign](value, limit)
    what = f"{condition.name} (the rise over base)" if condition.name in ALIASES else condition.name
    is_ = "has no value" if value is None else f"is {value:.4g}"
    verb = "met" if holds else "missed"
    return Outcome(condition.text, holds, f"{verb}: {what} of {judged} {is_}, wanted {condition.sign} {against}")


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    limit = _LIMIT.fullmatch(match["limit"].strip()) if match else None
    if match is None or limit is None:
        raise UserError(
            f"The gate's '{text}' is not of the form FIGURE<LIMIT, with <, <=, > or >=, and 0.1, 95% or base-0.02."
        )
    offset = _number(limit["number"] or limit["offset"] or "0")
    condition = Condition(text, match["judged"], match["name"], match["sign"], offset, limit["side"], limit[0])
    if condition.name in ALIASES and condition.side is None and abs(offset) >= _GREATEST_RISE:
        raise UserError(
            f"The gate's '{text}': {condition.name} is the rise of the loss on general text, in nats per token; for "
            "the loss itself write general_nats."
        )
    return condition


def _number(text: str) -> float:
    text = text.replace(" ", "")
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)
