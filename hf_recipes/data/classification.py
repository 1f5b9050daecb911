"""Text classification: rows of text and label → tokens and class numbers, with the balance of the labels looked at."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.tables import render_table
from hf_recipes.data.check import open_source
from hf_recipes.data.choosing.keys import text_hash
from hf_recipes.data.choosing.split import Splitter, join_clusters
from hf_recipes.data.ledger import BadRow, Ledger, Place
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import as_specs, read_rows, unique_labels

if TYPE_CHECKING:
    from datasets import Dataset

CHECKED_ROWS = 20


@dataclass(frozen=True)
class ClassificationData:
    """`train` and `eval` with the columns ``input_ids``, ``labels`` (class numbers), ``source`` and ``row_id``;
    `labels` names the classes by number; `report` becomes data.json."""

    train: Dataset
    eval: Dataset | None
    labels: list[str]
    report: dict[str, Any]


@dataclass(frozen=True)
class _Row:
    text: str
    label: str
    source: str
    place: Place


def check_classification_sources(datasets: Sequence[Any], bad_rows: str = "drop") -> None:
    """Check paths, columns and the first rows of every source, without a tokenizer. Raises `UserError`."""
    specs = as_specs(datasets)
    for spec, label in zip(specs, unique_labels(specs), strict=True):
        ledger = Ledger(label, bad_rows)
        for count, _ in enumerate(_labelled_rows(spec, ledger), start=1):
            if count >= CHECKED_ROWS:
                break
        if not ledger.kept:
            raise UserError(f"No row of '{spec.path}' has a text and a label: {ledger.reasons()}.")


def are_labelled_texts(specs: Sequence[SourceSpec]) -> bool:
    """Whether no source names a format, and the first rows of all are texts with a label: data of a classifier, unless
    the text alone is meant.

    Args:
        specs: sources that are on this machine.
    """
    if any(spec.format != "auto" for spec in specs):
        return False
    try:
        if any(open_source(spec, Ledger(spec.label))[0] != "text" for spec in specs):
            return False
        check_classification_sources([replace(spec, role="domain") for spec in specs])
    except UserError:
        return False
    return True


def prepare_classification(
    datasets: Sequence[SourceSpec | Mapping[str, Any]],
    tokenizer: Any,
    *,
    max_length: int | None,
    eval_share: float = 0.1,
    bad_rows: str = "drop",
    max_label_share: float = 0.99,
    seed: int = 42,
) -> ClassificationData:
    """Read, check, split and tokenise labelled texts.

    Args:
        datasets: A recipe's ``datasets:``; rows need ``text`` and ``label`` (name other columns by ``columns:``).
        tokenizer: The model's tokenizer.
        max_length: Texts are cut there, and counted.
        eval_share: Part of each source held out.
        bad_rows: ``drop`` or ``fail``.
        max_label_share: A label that holds more of the training rows than this fails the check.
        seed: Decides the split.

    Raises:
        UserError: a source is wrong, or there is only one label.
        CheckFailed: one label holds nearly all rows.
    """
    specs = as_specs(datasets)
    ledgers = [Ledger(label, bad_rows) for label in unique_labels(specs)]
    by_source = [list(_labelled_rows(spec, ledger)) for spec, ledger in zip(specs, ledgers, strict=True)]
    train, held_out = _split(by_source, eval_share, seed)
    labels = sorted({row.label for row in (*train, *held_out)})
    counts = Counter(row.label for row in train)
    check_balance(counts, max_label_share)
    encoded = [_encode(part, labels, tokenizer, max_length) for part in (train, held_out)]
    report = {
        "sources": [{"source": ledger.source, **ledger.as_dict()} for ledger in ledgers],
        "labels": {label: counts[label] for label in labels},
        "prior_entropy_nats": prior_entropy(counts),
        "train": {"rows": len(train)},
        "eval": {"rows": len(held_out)},
        "truncated": sum(truncated for _, truncated in encoded),
    }
    return ClassificationData(encoded[0][0], encoded[1][0] if held_out else None, labels, report)


def _split(by_source: Sequence[Sequence[_Row]], eval_share: float, seed: int) -> tuple[list[_Row], list[_Row]]:
    """Rows for training and for evaluation; equal texts lie on one side, across sources too."""
    keys = np.array([text_hash(row.text) for rows in by_source for row in rows], np.uint64)
    clusters, splitter = join_clusters(keys), Splitter(len(keys), seed)
    parts: tuple[list[_Row], list[_Row]] = ([], [])
    start = 0
    for rows in by_source:
        inside = slice(start, start := start + len(rows))
        for row, held_out in zip(rows, splitter.split(clusters[inside], keys[inside], eval_share), strict=True):
            parts[int(held_out)].append(row)
    return parts


def _labelled_rows(spec: SourceSpec, ledger: Ledger) -> Iterator[_Row]:
    for place, row in read_rows(spec, ledger):
        try:
            text, label = _text_and_label(row)
        except BadRow as fault:
            ledger.bad(place, fault)
            continue
        ledger.kept += 1
        yield _Row(text, label, ledger.source, place)


def _text_and_label(row: Mapping[str, Any]) -> tuple[str, str]:
    text, label = row.get("text"), row.get("label")
    if not isinstance(text, str) or not text.strip():
        raise BadRow("field 'text' holds no text", type(text).__name__)
    if isinstance(label, bool) or not isinstance(label, (str, int)) or label == "":
        raise BadRow("field 'label' is neither text nor a whole number", repr(label))
    return text, str(label)


def check_balance(counts: Mapping[str, int], max_label_share: float) -> None:
    """Fail when one label holds nearly the whole mass: a model that always answers it would look right.

    Raises:
        UserError: there are fewer than two labels.
        CheckFailed: the largest label's share exceeds `max_label_share`.
    """
    if len(counts) < 2:
        raise UserError(f"The training rows have {len(counts)} label(s): a classifier needs at least two.")
    label, count = max(counts.items(), key=lambda item: item[1])
    share = count / sum(counts.values())
    if share > max_label_share:
        raise CheckFailed(
            f"label '{label}' holds {share:.1%} of the training rows, so always answering it would look right: balance "
            "the classes, or allow it with max_label_share"
        )


def prior_entropy(counts: Mapping[str, int]) -> float:
    """Entropy of the label distribution in nats: the loss of a model that knows the frequencies and nothing else."""
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values() if count)


def _encode(rows: Sequence[_Row], labels: Sequence[str], tokenizer: Any, max_length: int | None) -> tuple[Dataset, int]:
    from datasets import Dataset

    numbers = {label: number for number, label in enumerate(labels)}
    ids = tokenizer([row.text for row in rows], verbose=False)["input_ids"] if rows else []
    truncated = sum(max_length is not None and len(row_ids) > max_length for row_ids in ids)
    columns = {
        "input_ids": [row_ids[:max_length] for row_ids in ids],
        "labels": [numbers[row.label] for row in rows],
        "source": [row.source for row in rows],
        "row_id": [str(row.place) for row in rows],
    }
    return Dataset.from_dict(columns), truncated


def label_table(report: Mapping[str, Any]) -> str:
    """The labels and their counts for the screen."""
    total = sum(report["labels"].values())
    rows = [(label, count, f"{count / total:.1%}") for label, count in report["labels"].items()]
    return render_table(("label", "training rows", "share"), rows)
