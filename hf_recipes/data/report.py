"""The account of a preparation: the dictionary behind ``data.json`` and its table for the screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hf_recipes.core.log import logger
from hf_recipes.core.tables import render_table
from hf_recipes.data.choosing.samples import PreparedSource, Samples
from hf_recipes.data.choosing.selection import Selection
from hf_recipes.data.ledger import Ledger, Place, Tally
from hf_recipes.data.settings import DataSettings

PERCENTILES = (50, 90, 99)
Array = np.ndarray[Any, Any]


def selection_report(samples: Samples, selection: Selection, settings: DataSettings) -> dict[str, Any]:
    """What ``data.json`` says of the samples chosen."""
    sizes = {"tokens": samples.column("length"), "supervised_tokens": samples.column("supervised_tokens")}
    of_source = samples.source_of(selection.train)
    general = np.isin(of_source, [n for n, source in enumerate(samples.sources) if source.spec.role == "general"])
    by = {"rows": _ratio(int(general.sum()), len(general))}
    for name, size in sizes.items():
        by[name] = _ratio(int(size[selection.train[general]].sum()), int(size[selection.train].sum()))
    mixture = selection.mixture
    return {
        "sources": [_source(samples, selection, number, sizes) for number in range(len(samples.sources))],
        "general_share": {
            "unit": settings.share_unit,
            "asked": settings.general_share,
            "reached": mixture.share if mixture else None,
            "by": by,
        },
        "train": _totals(selection.train, sizes),
        "eval": _totals(selection.eval, sizes),
        "leakage": {
            kind: {"count": found.count, "examples": [_pair(samples, pair) for pair in found.pairs]}
            for kind, found in selection.leakage.items()
        },
    }


def _source(samples: Samples, selection: Selection, number: int, sizes: Mapping[str, Array]) -> dict[str, Any]:
    source = samples.sources[number]
    ledger = _ledger(samples, source, selection.dropped[number])
    train = selection.train[samples.source_of(selection.train) == number]
    used = len(np.unique(train))
    held_out = int((samples.source_of(selection.eval) == number).sum())
    return {
        "source": source.label,
        "path": source.spec.path,
        "role": source.spec.role,
        "format": source.format,
        "files": source.files,
        "given_eval": source.spec.is_given_eval,
        **ledger.as_dict(),
        "duplicates": selection.duplicates[number],
        "train": len(train),
        "eval": held_out,
        "not_drawn": ledger.samples - used - held_out,
        "repeated": len(train) - used,
        **{f"train_{name}": int(size[train].sum()) for name, size in sizes.items()},
        "most_common_answer": _most_common_answer(samples, number),
    }


def _ledger(samples: Samples, source: PreparedSource, dropped: Mapping[str, Array]) -> Ledger:
    """The source's account with what the corpus rules took out."""
    ledger = Ledger(source.label)
    ledger.merge(source.account.ledger)
    first_part = samples.column("part") == 0
    for reason, numbers in dropped.items():
        rows = numbers[first_part[numbers]]
        ledger.dropped.merge(_tally(samples, reason, rows))
        ledger.kept -= len(rows)
        ledger.samples -= len(numbers)
    return ledger


def _tally(samples: Samples, reason: str, numbers: Array) -> Tally:
    tally = Tally()
    for number in numbers[:3].tolist():
        tally.add(reason, place_of(samples, number))
    tally.counts[reason] = len(numbers)
    return tally


def place_of(samples: Samples, number: int) -> Place:
    """Where a sample's row lies."""
    return Place.parse(samples.dataset[number]["row_id"])


def _pair(samples: Samples, pair: tuple[int, int]) -> dict[str, str]:
    return {side: samples.dataset[number]["row_id"] for side, number in zip(("eval", "train"), pair, strict=True)}


def _most_common_answer(samples: Samples, number: int) -> dict[str, Any]:
    """Which sample has the most common answer of a source, and what share of the samples has the same."""
    inside = samples.numbers(number)
    codes = samples.sources[number].store.column("answer_key")
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    most = int(np.argmax(counts))
    return {"share": _ratio(int(counts[most]), len(codes)), "row_id": str(place_of(samples, int(inside[first[most]])))}


def _totals(numbers: Array, sizes: Mapping[str, Array]) -> dict[str, Any]:
    return {
        "rows": len(numbers),
        **{name: int(size[numbers].sum()) for name, size in sizes.items()},
        "length": length_percentiles(sizes["tokens"][numbers]),
    }


def length_percentiles(lengths: Iterable[int]) -> dict[str, int]:
    """Nearest-rank percentiles of sample lengths in tokens: the smallest length that p % of samples do not exceed."""
    ordered = np.sort(np.asarray(lengths))
    if not len(ordered):
        return {}
    ranks = {f"p{percent}": int(ordered[-(-len(ordered) * percent // 100) - 1]) for percent in PERCENTILES}
    return {**ranks, "max": int(ordered[-1])}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def tell_losses(report: Mapping[str, Any]) -> None:
    """Log, source by source, what was dropped, changed, cut and shortened, and what of the eval set is trained on."""
    for source in report["sources"]:
        kept, label = source["kept"], source["source"]
        if source["dropped"]:
            dropped = Tally.from_dict(source["dropped"])
            logger.warning(
                "%s: %d of %d rows dropped: %s.", label, dropped.counts.total(), source["read"], dropped.phrase()
            )
        if source["changed"]:
            logger.info("%s: rows changed by cleaning: %s.", label, Tally.from_dict(source["changed"]).phrase())
        for word, key in (("cut at max_length", "truncated"), ("shortened at the prompt's start", "shortened")):
            if source[key]:
                logger.info("%s: %d of %d rows %s.", label, source[key], kept, word)
        common, allowed = source["most_common_answer"], report["settings"]["clean"]["max_value_share"]
        if allowed is not None and common["share"] > allowed:
            logger.warning(
                "%s: %.1f %% of the samples have one and the same answer (first: %s): always giving it looks right.",
                label,
                100 * common["share"],
                common["row_id"],
            )
        if source["lost_answers"]:
            lost = "%s: %d answers of split or shortened rows did not fit and are left out."
            logger.warning(lost, label, source["lost_answers"])
    for kind, found in report["leakage"].items():
        if found["count"]:
            logger.warning(_LEAKS[kind], found["count"], found["examples"][0]["eval"], found["examples"][0]["train"])


_LEAKS = {
    "exact": "%d eval samples are trained on as well (first: %s is %s): remove them from one side.",
    "near": "%d eval samples nearly equal a training sample (first: %s and %s): the eval loss will look too good.",
    "prompt": "%d eval samples share their prompt with a training sample (first: %s and %s).",
}


def report_table(report: dict[str, Any]) -> str:
    """The report for the screen: one line a source, why rows were dropped, what is trained on."""
    if report.get("streaming"):
        return _streaming_table(report)
    headers = [
        "source",
        "role",
        "format",
        "read",
        "dropped",
        "cut",
        "shortened",
        "samples",
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
            source["samples"],
            source["not_drawn"],
            source["eval"],
            source["train"],
            source["train_tokens"],
        ]
        for source in report["sources"]
    ]
    return "\n".join([render_table(headers, rows), *_drop_lines(report), *_summary_lines(report)])


def _streaming_table(report: dict[str, Any]) -> str:
    rows = [[source[key] for key in ("source", "role", "format", "eval")] for source in report["sources"]]
    table = render_table(["source", "role", "format", "eval"], rows)
    return f"{table}\nThe data are streamed: what became of each row is counted in data.json as it is read."


def _drop_lines(report: dict[str, Any]) -> list[str]:
    return [
        f"dropped from {source['source']}: {entry['count']} × {reason} (first: "
        f"{Place(entry['examples'][0]['file'], entry['examples'][0]['row']).told})"
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
    lines += [
        f"{source['source']}: {source['lost_answers']} answers of split or shortened rows did not fit and are left out"
        for source in report["sources"]
        if source["lost_answers"]
    ]
    if report["end_of_turn"]:
        lines.append(f"assistant turns end with {report['end_of_turn']['text']}, which is learned")
    return lines
