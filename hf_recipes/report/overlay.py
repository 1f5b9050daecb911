"""Several runs side by side: how each stands, their numbers, and the recipe keys in which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hf_recipes.core.escape import text
from hf_recipes.core.html import note, section, table
from hf_recipes.report.headline import Figure, headline
from hf_recipes.report.html import ABSENT
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.sections import problems, recipe_value
from hf_recipes.report.verdict import verdict

_EXPECTED = {"output_dir", "resume_from_checkpoint"}  # differ between any two runs


def run_names(records: Sequence[RunRecord]) -> list[str]:
    """A name for each run: its directory's; where two are alike, with the directories above that tell them apart."""
    paths = [record.path.resolve() for record in records]
    names = [path.name for path in paths]
    for depth in range(2, max((len(path.parts) for path in paths), default=0) + 1):
        alike = {name for name, count in Counter(names).items() if count > 1}
        if not alike:
            break
        names = [
            "/".join(path.parts[-depth:]) if name in alike else name for path, name in zip(paths, names, strict=True)
        ]
    return names


def verdicts(records: Sequence[RunRecord]) -> str:
    """A line for each run, in the colour of its curves, with what of it could not be read."""
    lines = []
    for index, (record, name) in enumerate(zip(records, run_names(records), strict=True)):
        stands = verdict(record)
        lines.append(
            f'<p class="verdict {stands.css}"><span class="key c{index % 8}"></span>{text(name)}: '
            f"<b>{text(stands.word)}</b> {text(stands.sentence)}</p>{problems(record.problems)}"
        )
    return "".join(lines)


def numbers(records: Sequence[RunRecord]) -> str:
    """Last and best losses, speed, time and alarms, a column a run."""
    columns = [{figure.name: figure for figure in headline(record)} for record in records]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[text(name), *(_cell(column.get(name)) for column in columns)] for name in names]
    return section("Side by side", table(["", *run_names(records)], rows))


def _cell(figure: Figure | None) -> str:
    return f"{text(figure.shown)} <small>{text(figure.detail)}</small>" if figure else ABSENT


def recipe_differences(records: Sequence[RunRecord]) -> str:
    """A table of the keys whose values are not the same in all runs."""
    recipes = [record.recipe for record in records]
    keys = sorted({key for recipe in recipes for key in recipe} - _EXPECTED)
    differing = [key for key in keys if any(recipe.get(key) != recipes[0].get(key) for recipe in recipes)]
    if not differing:
        told = "The recipes are alike." if all(recipes) else "Not every run has a recipe."
        return section("Recipes: what differs", note(told))
    rows = [
        [f"<code>{text(key)}</code>", *(recipe_value(key, recipe.get(key)) for recipe in recipes)] for key in differing
    ]
    return section("Recipes: what differs", table(["key", *run_names(records)], rows, css="keys"))
