"""What a run directory tells about its model, as far as it is there; nothing here raises on absent or odd files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.events import read_event_lines
from hf_recipes.core.files import read_json
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.export.card.private import scrub, scrubbed

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$")
_DATA_FILE = re.compile(r"\.(jsonl?|csv|tsv|parquet|arrow|txt|md|html?|gz|zst|zip)$", re.IGNORECASE)
_LICENCE_LINE = re.compile(r"^license:\s*[\"']?([\w.+-]+)[\"']?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class CardFacts:
    """The run's JSON files (empty where absent or damaged), its last losses, and the form that the card is for; every
    text in them already `scrubbed`, so that nothing written from them can tell a path or a secret.

    `form` is ``adapter``, ``merged`` (weights in 16 or 32 bits), ``quantised`` or ``gguf``. `licence` is the base's,
    where a card or config of the base says it.
    """

    name: str
    form: str
    run: dict[str, Any]
    data: dict[str, Any]
    evaluation: dict[str, Any]
    losses: dict[str, float]
    steps: int | None
    alarms: int
    merge: dict[str, Any] = field(default_factory=dict)
    forms: Sequence[dict[str, Any]] = ()
    licence: str | None = None
    has_curves: bool = False

    @property
    def recipe(self) -> dict[str, Any]:
        return _dict(self.run.get("recipe"))

    @property
    def base(self) -> str | None:
        """The base as its user named it: a Hub name, or the last part of a path."""
        name = self.recipe.get("model_name_or_path") or _dict(self.run.get("base_model")).get("name_or_path")
        return str(name) if name else None

    @property
    def hub_base(self) -> str | None:
        """The base's Hub name, or None where it is a directory of this machine."""
        return self.base if self.base and is_hub_name(self.base) else None

    @property
    def method(self) -> str:
        return str(self.recipe.get("method") or "")

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The sources of data.json, each with what the recipe says of it (``license``)."""
        given = {str(s.get("path")): s for s in _dicts(self.recipe.get("datasets"))}
        return [{**given.get(str(s.get("path")), {}), **s} for s in _dicts(self.data.get("sources"))]


def is_hub_name(name: str) -> bool:
    """Whether `name` is ``owner/name``, and neither written like a file of data nor a directory here."""
    return bool(_HUB_NAME.match(name)) and not _DATA_FILE.search(name) and not Path(name).exists()


def read_card_facts(
    run_path: Path, form_directory: Path, merge: dict[str, Any] | None, forms: Sequence[dict[str, Any]]
) -> CardFacts:
    """Read what the card is written from. `merge`, if None, is the report that a merge leaves in its output."""
    run = RunDirectory(run_path)
    record = _object(run.run_json)
    report = merge if merge is not None else _object(form_directory / "hf_recipes_merge.json")
    losses, steps, alarms = _read_events(run_path / "events.jsonl")
    return CardFacts(
        name=scrub(run_path.resolve().name),
        form=_form(form_directory),
        run=scrubbed(record),
        data=scrubbed(_object(run.data_json)),
        evaluation=scrubbed(_object(run.evaluation_json)),
        losses=losses,
        steps=steps,
        alarms=alarms,
        merge=scrubbed(report),
        forms=scrubbed(list(forms)),
        licence=_base_licence(record),
        has_curves=(run_path / "curves.png").is_file() and not (run_path / "curves.png").is_symlink(),
    )


def _form(directory: Path) -> str:
    """What lies in a directory; for the run's own, what it made."""
    if (directory / "run.json").is_file():
        return "adapter" if (directory / "adapter").is_dir() else "merged"
    if (directory / "adapter_config.json").is_file():
        return "adapter"
    if any(directory.glob("*.gguf")):
        return "gguf"
    return "quantised" if _object(directory / "config.json").get("quantization_config") else "merged"


def _read_events(file: Path) -> tuple[dict[str, float], int | None, int]:
    """The last training and evaluation loss, the last step, and how many alarms rang."""
    losses: dict[str, float] = {}
    steps, alarms = None, 0
    try:
        events = read_event_lines(file)
    except OSError:
        return losses, steps, alarms
    for event in events:
        alarms += event.get("kind") == "alarm"
        if isinstance(event.get("step"), int):
            steps = event["step"]
        losses |= {key: value for key in ("loss", "eval_loss") if isinstance(value := event.get(key), float)}
    return losses, steps, alarms


def _base_licence(run: dict[str, Any]) -> str | None:
    """The licence in the base's own card: beside its weights, or in the Hub's cache."""
    base = _dict(run.get("base_model"))
    name = str(base.get("name_or_path") or "")
    for file in (Path(name) / "README.md", _cached_card(name, base.get("revision"))):
        if file is not None and (head := _beginning(file)):
            block = head.split("\n---", 1)[0] if head.startswith("---") else ""
            if match := _LICENCE_LINE.search(block):
                return match[1]
    return None


def _beginning(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")[:20_000]
    except (OSError, ValueError):  # not there, no file, or no name of one
        return ""


def _cached_card(name: str, revision: Any) -> Path | None:
    if not is_hub_name(name):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "README.md", revision=revision if isinstance(revision, str) else None)
    return Path(found) if isinstance(found, str) else None


def _object(file: Path) -> dict[str, Any]:
    try:
        return _dict(read_json(file))
    except (OSError, ValueError):
        return {}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
