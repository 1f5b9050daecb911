"""What people's ratings say: which model they prefer, how each does by each criterion, and how far raters agree."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hf_recipes.core.tables import render_table
from hf_recipes.evaluation.rating.read import Rating, read_key, read_rating_file, refuse_same_rater
from hf_recipes.evaluation.rating.statistics import (
    Distance,
    cohen_kappa,
    krippendorff_alpha,
    nominal,
    ordinal,
    percent_agreement,
    wilson,
)

_TIE = "tie"
Label = TypeVar("Label", str, int)


@dataclass(frozen=True)
class Preference:
    """How often one side was preferred; a tie counts half to each. `low` and `high` bound the share at 95 %.

    The interval takes judgements as independent, which those of several raters on one item are not quite.
    """

    side: str
    wins: int
    ties: int
    count: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Agreement:
    """How far raters agree on one question. `kappa` is Cohen's, for two raters; values are NaN where undefined.

    ``alpha`` is Krippendorff's: nominal for preferences, ordinal for scores. ``items`` were rated by two or more.
    """

    question: str
    items: int
    percent: float
    kappa: float
    alpha: float


@dataclass(frozen=True)
class RatingSummary:
    """What the files of one sheet say.

    Args:
        sides: the two models.
        raters: names, with the items each rated, whole or in part.
        items: on the sheet.
        preferences: one for each side; empty where nobody gave any.
        means: criterion → side → mean score; NaN where nobody scored.
        agreements: the preference first, then each criterion; empty for a single rater.
    """

    sides: tuple[str, str]
    raters: dict[str, int]
    items: int
    preferences: list[Preference]
    means: dict[str, dict[str, float]]
    agreements: list[Agreement]


def read_ratings(files: Sequence[str | Path], key_file: str | Path) -> RatingSummary:
    """Read raters' CSV files with the key that `write_rating_sheet` wrote.

    Raises:
        UserError: a file is damaged (file and row are named), is of another sheet, or two are of one rater.
    """
    key = read_key(Path(key_file))
    ratings = [rating for file in files for rating in read_rating_file(Path(file), key)]
    refuse_same_rater(ratings)
    raters = list(dict.fromkeys(rating.rater for rating in ratings))
    return RatingSummary(
        sides=key.sides,
        raters={rater: sum(rating.rater == rater and rating.touched for rating in ratings) for rater in raters},
        items=len(key.shown),
        preferences=_preferences(key.sides, [rating.preference for rating in ratings if rating.preference]),
        means={name: {side: _mean(_scores(ratings, name, side)) for side in key.sides} for name in key.criteria},
        agreements=_agreements(ratings, key.criteria, raters) if len(raters) > 1 else [],
    )


def render(summary: RatingSummary) -> str:
    """The summary in words and tables for the terminal."""
    told = ", ".join(f"{name} ({count} of {summary.items})" for name, count in summary.raters.items())
    parts = [f"Rated by {told}.", _preference_table(summary.preferences)]
    rows = [[name, *(_figure(means[side]) for side in summary.sides)] for name, means in summary.means.items()]
    parts.append("Mean scores (1 to 5)\n" + render_table(["criterion", *summary.sides], rows))
    if summary.agreements:
        lines = [
            [each.question, each.items, _percent(each.percent), _figure(each.kappa), _figure(each.alpha)]
            for each in summary.agreements
        ]
        headers = ["agreement on", "items", "same", "Cohen's kappa", "Krippendorff's alpha"]
        parts.append(render_table(headers, lines))
    return "\n\n".join(parts)


def _preferences(sides: tuple[str, str], given: Sequence[str]) -> list[Preference]:
    if not given:
        return []
    ties = given.count(_TIE)
    return [_preference(side, given.count(side), ties, len(given)) for side in sides]


def _preference(side: str, wins: int, ties: int, count: int) -> Preference:
    low, high = wilson(wins + ties / 2, count)
    return Preference(side, wins, ties, count, (wins + ties / 2) / count, low, high)


def _scores(ratings: Iterable[Rating], criterion: str, side: str) -> list[int]:
    found = (rating.scores.get((criterion, side)) for rating in ratings)
    return [score for score in found if score is not None]


def _agreements(ratings: Sequence[Rating], criteria: Sequence[str], raters: Sequence[str]) -> list[Agreement]:
    """On preferences as three labels, and on scores with each answer (item and side) as a thing rated."""
    preferred: dict[Hashable, dict[str, str]] = {}
    scored: dict[str, dict[Hashable, dict[str, int]]] = {name: {} for name in criteria}
    for rating in ratings:
        if rating.preference:
            preferred.setdefault(rating.item, {})[rating.rater] = rating.preference
        for (name, side), score in rating.scores.items():
            scored[name].setdefault((rating.item, side), {})[rating.rater] = score
    return [
        _agreement("preference", list(preferred.values()), raters, nominal),
        *(_agreement(name, list(scored[name].values()), raters, ordinal) for name in criteria),
    ]


def _agreement(
    question: str, units: Sequence[Mapping[str, Label]], raters: Sequence[str], distance: Distance[Label]
) -> Agreement:
    several = [unit for unit in units if len(unit) > 1]
    labels = [list(unit.values()) for unit in several]
    kappa = math.nan
    if len(raters) == 2 and several:
        kappa = cohen_kappa(*([unit[rater] for unit in several] for rater in raters))
    return Agreement(question, len(several), percent_agreement(labels), kappa, krippendorff_alpha(labels, distance))


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else math.nan


def _preference_table(preferences: Sequence[Preference]) -> str:
    if not preferences:
        return "Nobody said which answer is better."
    rows = [
        [each.side, each.wins, each.ties, _percent(each.share), f"{_percent(each.low)} to {_percent(each.high)}"]
        for each in preferences
    ]
    note = f"Of {preferences[0].count} judgements, a tie counted half to each"
    return f"{note}\n{render_table(['preferred', 'wins', 'ties', 'share', '95 % interval'], rows)}"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.0f} %"


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
