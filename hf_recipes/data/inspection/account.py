"""The preparation's report as rows of tables, for screen and page alike. Parts a report does not have are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Report = Mapping[str, Any]
Rows = list[list[Any]]


@dataclass(frozen=True)
class Table:
    """A table to show: `rows` hold texts and numbers, one entry a header."""

    headers: Sequence[str]
    rows: Rows


def count_of(entry: Any) -> int:
    """The count in an entry of a report: a bare number, or a mapping with ``count``."""
    return int(entry.get("count", 0)) if isinstance(entry, Mapping) else int(entry or 0)


def dropped(source: Mapping[str, Any]) -> int:
    """How many rows of a source were dropped."""
    return sum(map(count_of, source.get("dropped", {}).values()))


def first_places(entry: Any, limit: int = 3) -> str:
    """The first rows an entry names, with their details, as one phrase; a file is named once."""
    examples = entry.get("examples", []) if isinstance(entry, Mapping) else []
    phrases, file = [], None
    for example in examples[:limit]:
        if isinstance(example, Mapping) and "file" in example:
            where = (
                f"{example.get('row', '')}"
                if example["file"] == file
                else f"{example['file']}:{example.get('row', '')}"
            )
            detail = example.get("detail")
            phrases.append(f"{where} ({detail})" if detail else where)
            file = example["file"]
        elif isinstance(example, Mapping):
            phrases.append(", ".join(f"{name} {value}" for name, value in example.items()))
        else:
            phrases.append(str(example))
    return "; ".join(phrases)


def source_table(report: Report) -> Table:
    """One line a source: what was read and what became of it."""
    names = ["read", "kept", "truncated", "shortened", "samples", "eval", "not_drawn", "repeated", "train"]
    used = [name for name in names if any(name in source for source in report["sources"])]
    headers = ["source", "role", "format", used[0], "dropped", "changed", *used[1:]]
    rows = []
    for source in report["sources"]:
        changed = sum(map(count_of, source.get("changed", {}).values()))
        counts = [source.get(name, 0) for name in used]
        rows.append(
            [source["source"], source["role"], source["format"], counts[0], dropped(source), changed, *counts[1:]]
        )
    return Table([header.replace("_", " ") for header in headers], rows)


def event_table(report: Report) -> Table:
    """Why rows were dropped and how they were changed, with the first places of each."""
    rows = [
        [source["source"], kind, count_of(entry), reason, first_places(entry)]
        for source in report["sources"]
        for kind in ("dropped", "changed")
        for reason, entry in source.get(kind, {}).items()
    ]
    return Table(["source", "what", "rows", "why", "first of them"], rows)


def share_table(report: Report) -> Table:
    """Each source's part of the training set in rows, tokens and learned tokens; then the general part, and what was
    asked for."""
    train = report["train"]
    rows = []
    for source in report["sources"]:
        parts = [
            _part(source.get("train", 0), train["rows"]),
            _part(source.get("train_tokens", 0), train["tokens"]),
            _part(source.get("train_supervised_tokens", 0), train["supervised_tokens"]),
        ]
        rows.append([source["source"], source["role"], *parts])
    share = report.get("general_share") or {}
    if share.get("reached") is not None:
        by = share["by"]
        names = ("rows", "tokens", "supervised_tokens")
        rows.append(["all general", "reached", *(f"{by[name]:.2%}" for name in names)])
        rows.append(
            ["all general", "asked", *(f"{share['asked']:.2%}" if name == share["unit"] else "" for name in names)]
        )
    return Table(["source", "role", "rows", "tokens", "learned tokens"], rows)


def _part(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.2%})" if whole else str(part)


def likeness_table(report: Report) -> Table:
    """Duplicates within sources, and eval samples that have their like in training."""
    rows: Rows = []
    for source in report["sources"]:
        for kind, entry in source.get("duplicates", {}).items():
            rows.append([source["source"], f"{kind} duplicates", count_of(entry), first_places(entry, 1)])
    for kind, entry in (report.get("leakage") or {}).items():
        rows.append(["eval", f"{LEAKAGE.get(kind, kind)} in training", count_of(entry), first_places(entry, 1)])
    return Table(["where", "what", "samples", "first"], rows)


LEAKAGE = {"exact": "samples that are", "near": "samples that nearly are", "prompt": "prompts that are"}


def note_table(report: Report) -> Table:
    """What cleaning noticed without changing anything: personal data by kind, languages."""
    rows = [
        [source, what.replace("_", " "), count_of(entry), first_places(entry)] for source, what, entry in notes(report)
    ]
    return Table(["source", "what", "rows", "first of them"], rows)


def notes(report: Report) -> Iterator[tuple[str, str, Any]]:
    """Every note as (source, what was noticed, entry)."""
    for source in report["sources"]:
        for what, entry in source.get("notes", {}).items():
            yield source["source"], what, entry
