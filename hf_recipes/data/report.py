"""The account of a preparation: the dictionary behind ``data.json`` and its table for the screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.tables import render_table

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Part:
    """One source after preparation; `train` and `eval` hold (tokens, learned tokens) of every sample."""

    label: str
    path: str
    role: str
    format: str
    files: list[dict[str, str]]
    ledger: dict[str, Any]
    train: list[tuple[int, int]]
    eval: list[tuple[int, int]]


def data_report(
    parts: Sequence[Part],
    *,
    unit: str,
    asked: float,
    reached: float | None,
    end_of_turn: dict[str, Any] | None,
    settings: dict[str, Any],
    data_fingerprint: str,
) -> dict[str, Any]:
    """Everything that ``data.json`` says. `reached` is the general share in `unit`, None without a general source."""
    train = [size for part in parts for size in part.train]
    held_out = [size for part in parts for size in part.eval]
    general = [size for part in parts if part.role == "general" for size in part.train]
    shares = {
        "rows": _ratio(len(general), len(train)),
        "tokens": _ratio(_tokens(general), _tokens(train)),
        "supervised_tokens": _ratio(_learned(general), _learned(train)),
    }
    return {
        "sources": [_source(part) for part in parts],
        "general_share": {"unit": unit, "asked": asked, "reached": reached, "by": shares},
        "train": _totals(train),
        "eval": _totals(held_out),
        "end_of_turn": end_of_turn,
        "settings": settings,
        "fingerprint": data_fingerprint,
    }


def _source(part: Part) -> dict[str, Any]:
    return {
        "source": part.label,
        "path": part.path,
        "role": part.role,
        "format": part.format,
        "files": part.files,
        **part.ledger,
        "train": len(part.train),
        "eval": len(part.eval),
        "not_drawn": part.ledger["kept"] - len(part.train) - len(part.eval),
        "train_tokens": _tokens(part.train),
        "train_supervised_tokens": _learned(part.train),
    }


def _totals(sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {
        "rows": len(sizes),
        "tokens": _tokens(sizes),
        "supervised_tokens": _learned(sizes),
        "length": length_percentiles([tokens for tokens, _ in sizes]),
    }


def length_percentiles(lengths: Sequence[int]) -> dict[str, int]:
    """Nearest-rank percentiles of sample lengths in tokens: the smallest length that p % of samples do not exceed."""
    if not lengths:
        return {}
    ordered = sorted(lengths)
    ranks = {f"p{percent}": ordered[-(-len(ordered) * percent // 100) - 1] for percent in PERCENTILES}
    return {**ranks, "max": ordered[-1]}


def _tokens(sizes: Sequence[tuple[int, int]]) -> int:
    return sum(tokens for tokens, _ in sizes)


def _learned(sizes: Sequence[tuple[int, int]]) -> int:
    return sum(learned for _, learned in sizes)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def report_table(report: dict[str, Any]) -> str:
    """The report for the screen: one line a source, why rows were dropped, what is trained on."""
    headers = [
        "source",
        "role",
        "format",
        "read",
        "dropped",
        "cut",
        "shortened",
        "not drawn",
        "eval",
        "train",
        "tokens",
    ]
    rows = [
        [
            source["source"],
            source["role"],
            source["format"],
            source["read"],
            sum(reason["count"] for reason in source["dropped"].values()),
            source["truncated"],
            source["shortened"],
            source["not_drawn"],
            source["eval"],
            source["train"],
            source["train_tokens"],
        ]
        for source in report["sources"]
    ]
    return "\n".join([render_table(headers, rows), *_drop_lines(report), *_summary_lines(report)])


def _drop_lines(report: dict[str, Any]) -> list[str]:
    return [
        f"dropped from {source['source']}: {entry['count']} × {reason} (first: {entry['examples'][0]['file']}, "
        f"row {entry['examples'][0]['row']})"
        for source in report["sources"]
        for reason, entry in source["dropped"].items()
    ]


def _summary_lines(report: dict[str, Any]) -> list[str]:
    train, share = report["train"], report["general_share"]
    lengths = ", ".join(f"{name} {value}" for name, value in train["length"].items())
    lines = [
        f"training: {train['rows']} samples, {train['tokens']} tokens, {train['supervised_tokens']} of them learned; "
        f"length {lengths}"
    ]
    if share["reached"] is not None:
        lines.append(f"general share by {share['unit']}: {share['reached']:.4f} reached, {share['asked']:g} asked")
    if report["end_of_turn"]:
        lines.append(f"assistant turns end with {report['end_of_turn']['text']}, which is learned")
    return lines
