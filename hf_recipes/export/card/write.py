"""Writes the card into an exported form, in place of the empty templates that PEFT and TRL leave there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import short_digest, write_text
from hf_recipes.core.log import logger
from hf_recipes.export.card import sections
from hf_recipes.export.card.facts import CardFacts, read_card_facts
from hf_recipes.export.card.markdown import plain
from hf_recipes.export.card.metadata import card_metadata
from hf_recipes.export.card.private import scrub

CARD_NAME = "README.md"
SECOND_NAME = "README.hf_recipes.md"
_PARTS = (
    sections.summary,
    sections.evaluation,
    sections.use,
    sections.intended_use,
    sections.training_data,
    sections.training,
    sections.merge,
    sections.forms,
    sections.recipe,
    sections.versions,
)
_MARK = re.compile(r"^<!-- hf_recipes ([0-9a-f]{16}) -->\n", re.MULTILINE)
_MANY_BLANKS = 20  # PEFT's empty template has some forty places to fill in


def write_model_card(
    run_path: Path,
    form_directory: Path,
    *,
    merge: dict[str, Any] | None = None,
    forms: Sequence[dict[str, Any]] = (),
) -> Path:
    """Write ``README.md`` (and ``curves.png``, if the run has it) into `form_directory`; returns the card's path.

    The text is free of absolute paths and of tokens of known forms, whatever the run's files hold. A card that somebody
    wrote, or ours with something filled in, is kept and told, and the new one written as ``README.hf_recipes.md``.

    Args:
        run_path: the run directory; what is missing there is missing in the card.
        form_directory: an adapter's, a merged model's, a quantised one's or a GGUF's.
        merge: `MergeReport.to_dict()`; by default what the merge left in `form_directory`.
        forms: one flat dict a form, as it is to stand in the card's table.

    Raises:
        UserError: one of the directories is not there.
    """
    for directory in (run_path, form_directory):
        if not directory.is_dir():
            raise UserError(f"'{directory}' is not a directory: there is nothing to write a card of.")
    facts = read_card_facts(run_path, form_directory, merge, forms)
    path = form_directory / CARD_NAME
    if not is_replaceable(path):
        path = form_directory / SECOND_NAME
        logger.warning("%s was written by hand and is kept: the new card is %s.", form_directory / CARD_NAME, path.name)
    write_text(path, render_card(facts))
    if facts.has_curves and form_directory.resolve() != run_path.resolve():
        (form_directory / "curves.png").unlink(missing_ok=True)  # a link there would be written through
        shutil.copyfile(run_path / "curves.png", form_directory / "curves.png")
    return path


def render_card(facts: CardFacts) -> str:
    """The whole card: the YAML head, a mark by which a later change by hand is known, and its parts."""
    head = yaml.safe_dump(card_metadata(facts), sort_keys=False, allow_unicode=True)
    title = f"# {plain(facts.name)}"
    parts = [part for section in _PARTS if (part := section(facts))]
    head = f"---\n{head}---\n"
    body = scrub("\n\n".join([title, *parts])) + "\n"
    return f"{head}<!-- hf_recipes {short_digest(head + body)} -->\n{body}"


def is_replaceable(card: Path) -> bool:
    """Whether nobody's words are lost with `card`: it is not there, an empty template of PEFT's or TRL's, or ours as it
    was written."""
    if not card.is_file():
        return True
    text = card.read_text(encoding="utf-8", errors="replace")
    if mark := _MARK.search(text):
        return short_digest(_MARK.sub("", text, count=1)) == mark[1]
    return text.count("[More Information Needed]") > _MANY_BLANKS or "It has been trained using [TRL]" in text
