"""Samples of what a run trained on and held out, for the proof that its merged model is its adapter."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory

SAMPLES, PROMPTS = 8, 2
# Short samples show as much of the weights as long ones, for less time.
MAX_TOKENS = 256
# What is prepared again as the run did it, split and all, in a second or two; of larger data the first rows are taken.
MAX_PREPARED_BYTES = 4 << 20
_FIXED_ONLY = "the proof goes by its fixed prompts only"


@dataclass(frozen=True)
class ProofRows:
    """`rows` are token ids, `labels` what was learned of them; `train` and `held_out` of the rows are from either side
    of the run's split (0 and 0 where that is not told apart); `prompts` are beginnings of held-out rows, up to the
    answer; `notices` say what is not as the run had it."""

    rows: list[list[int]] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    train: int = 0
    held_out: int = 0
    notices: list[str] = field(default_factory=list)


def proof_rows(run: RunDirectory | Path, samples: int = SAMPLES) -> ProofRows:
    """Up to `samples` samples of a run's data, encoded as the run did, half of them held out where it held any out.

    Never raises for data that is gone or has changed its form: a notice says so, and there are no rows.
    """
    directory = run if isinstance(run, RunDirectory) else RunDirectory(run)
    try:
        record = directory.read(directory.run_json)
        recipe = record.get("recipe") or {}
        if record.get("task", "causal_lm") != "causal_lm" or not recipe.get("datasets"):
            return ProofRows(notices=[f"{directory.path} did not train on conversations or text: {_FIXED_ONLY}."])
        with _quiet():
            return _read(directory, recipe, samples)
    except (UserError, OSError, ValueError, KeyError) as error:
        notice = f"The data of {directory.path} cannot be read again ({first_line(error)}): {_FIXED_ONLY}."
        return ProofRows(notices=[notice])


def _read(directory: RunDirectory, recipe: Mapping[str, Any], samples: int) -> ProofRows:
    from transformers import AutoTokenizer

    from hf_recipes.data.reading.sources import as_specs, find_files

    # The one the result was saved with: it has the template of the training. A run may be a stranger's, so what its
    # record says of trusting code counts for nothing.
    tokenizer = AutoTokenizer.from_pretrained(directory.result, trust_remote_code=False)
    files = [find_files(spec) for spec in as_specs(recipe["datasets"])]
    if None in files:
        return ProofRows(notices=[f"A dataset of the run is on the Hub and is not fetched again: {_FIXED_ONLY}."])
    size = sum(file.stat().st_size for group in files for file in group or ())
    if size <= MAX_PREPARED_BYTES and not recipe.get("streaming"):
        return _prepared(directory, recipe, tokenizer, samples)
    found = _first_rows(recipe, tokenizer, samples)
    told = "The run's data is large or streamed: its first rows are taken, whether trained on or held out."
    return ProofRows([row for row, _ in found], [labels for _, labels in found], notices=[told])


def _prepared(directory: RunDirectory, recipe: Mapping[str, Any], tokenizer: Any, samples: int) -> ProofRows:
    """Both sides of the split, as `prepare_data` makes them or finds them made."""
    from hf_recipes.data.prepare import prepare_data
    from hf_recipes.data.settings import data_settings

    data = prepare_data(recipe["datasets"], tokenizer, **data_settings(recipe))
    held_out = [data.eval[index] for index in _spread(data.eval["length"], samples // 2)] if data.eval else []
    trained = [data.train[index] for index in _spread(data.train["length"], samples - len(held_out))]
    prompts = [prompt for row in (held_out or trained) if (prompt := _prompt(row))]
    rows = [list(row["input_ids"]) for row in [*trained, *held_out]]
    same = directory.read(directory.data_json).get("fingerprint") == data.report["fingerprint"]
    notices = (
        [] if same else ["The data, or how it is prepared, has changed since the run: samples are of what is there."]
    )
    labels = [list(row["labels"]) for row in [*trained, *held_out]]
    return ProofRows(rows, labels, prompts[:PROMPTS], len(trained), len(held_out), notices)


def _spread(lengths: Sequence[int], count: int) -> list[int]:
    """`count` rows from all over, of those that are not long while there are enough."""
    short = [index for index, length in enumerate(lengths) if length <= MAX_TOKENS]
    order = short if len(short) >= count else sorted(range(len(lengths)), key=lambda index: lengths[index])[:count]
    step = len(order) / max(1, count)
    return [order[int(number * step)] for number in range(min(count, len(order)))]


def _prompt(row: Mapping[str, Any]) -> list[int]:
    """The tokens before the first learned one; none of plain text, or where they are many."""
    learned = next((index for index, label in enumerate(row["labels"]) if label != IGNORED_LABEL), 0)
    return list(row["input_ids"][:learned]) if 1 < learned <= MAX_TOKENS else []


def _first_rows(recipe: Mapping[str, Any], tokenizer: Any, samples: int) -> list[tuple[list[int], list[int]]]:
    """The first rows of every source in turn, encoded and cut, but not cleaned, mixed or split; with labels."""
    from hf_recipes.data.inspection.round_trip import first_examples
    from hf_recipes.data.ledger import BadRow
    from hf_recipes.data.masking.masks import Encoder

    encoder = Encoder(tokenizer, recipe.get("assistant_only_loss", True), recipe.get("mask_history", False))
    limit = recipe.get("max_length", 1024)
    by_source = []
    for _, examples in first_examples(recipe["datasets"], rows=samples):
        encoded = encoder.encode([example for _, example in examples])
        good = [each for each in encoded if not isinstance(each, BadRow)]
        by_source.append([(each.input_ids[:limit].tolist(), each.labels[:limit].tolist()) for each in good])
    return [row for row in chain(*zip_longest(*by_source)) if row and row[0]][:samples]


@contextmanager
def _quiet() -> Iterator[None]:
    """What preparing has to tell was told when the run did it."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
