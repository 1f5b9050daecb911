"""A recipe's data as a stream (``streaming: true``): read, tokenised, held out and mixed while it is trained on.

Memory does not grow with the rows: a window of samples of each source is held, and the eval set. What needs to have
seen all rows first (duplicates, length outliers, balance, stratification) is not done, and told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.data.check import open_source
from hf_recipes.data.clean.cleaner import Cleaner
from hf_recipes.data.encode import RowEncoder
from hf_recipes.data.fingerprint import fingerprint, tokenizer_fingerprint
from hf_recipes.data.ledger import Ledger
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.masking.turn_end import end_of_turn_facts
from hf_recipes.data.mixing.mixed_examples import Blend, SampleCounts
from hf_recipes.data.mixing.mixed_stream import mixed_stream
from hf_recipes.data.mixing.mixture import tell_no_general
from hf_recipes.data.mixing.sample_sizes import row_size
from hf_recipes.data.mixing.stream_source import (
    STREAM_BLOCKS,
    Holding,
    NoSignatures,
    SourceAccount,
    SourceExamples,
    is_held_out,
)
from hf_recipes.data.reading.source_files import find_files
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import as_specs, eval_share_of, source_blocks, source_identity, unique_labels
from hf_recipes.data.settings import DataSettings, as_settings
from hf_recipes.data.store import SAMPLE_COLUMNS

BUFFER_ROWS = 1000
EVAL_ROWS = 512
_PATIENCE = 4  # times as many rows are read in search of eval rows as should hold them on average


@dataclass
class StreamedSource:
    """One source: how it is read, what of it is for evaluation, and what has become of its rows so far."""

    plan: RowEncoder
    holding: Holding
    account: SourceAccount
    given: SampleCounts
    eval_batches: list[pa.RecordBatch]

    @property
    def spec(self) -> SourceSpec:
        """As the recipe has it."""
        return self.plan.spec

    @property
    def eval_rows(self) -> int:
        """Samples in the eval set."""
        return sum(len(batch) for batch in self.eval_batches)


@dataclass(frozen=True)
class StreamedData:
    """What the trainer needs.

    `train` gives ``input_ids``, ``labels`` (int32 arrays, -100 where nothing is learned), ``source`` and ``row_id``;
    `set_epoch`, `state_dict`, `load_state_dict` and `datasets.distributed.split_dataset_by_node` work on it. `eval` is
    a `Dataset` of the same columns, or None.
    """

    train: IterableDataset
    eval: Dataset | None
    sources: Sequence[StreamedSource]
    facts: dict[str, Any]

    @property
    def report(self) -> dict[str, Any]:
        """The account so far of the pass that is being read, in the form of ``data.json``.

        A source is read ahead by the window that is shuffled. Rows read in another process (a loader with workers)
        are counted there, not here.
        """
        return _report(self.sources) | self.facts


def stream_data(
    datasets: Sequence[SourceSpec | Mapping[str, Any]],
    tokenizer: Any,
    *,
    buffer_size: int = BUFFER_ROWS,
    eval_rows: int = EVAL_ROWS,
    **settings: Any,
) -> StreamedData:
    """Stream the sources of a recipe: as `prepare_data`, but without reading all of them first.

    Rows are held out by a hash of the row (or of its ``group_by`` value) and the seed, so copies lie on one side. They
    are never trained on; the first of them, found by a pass over the beginning of the sources, are the eval set. Rows
    that stand in the eval set are not trained on from another source either.

    Args:
        datasets: a recipe's ``datasets:``; at least one of role ``domain`` with rows to train on.
        tokenizer: the model's fast tokenizer, with a chat template unless all sources are plain text.
        buffer_size: samples of a source that are shuffled among each other, in windows, by seed and epoch.
        eval_rows: size of the eval set, in equal parts from all sources that hold out a share. Given eval sets
            (``eval_share: 1``) are used whole and besides.
        settings: any of `DataSettings`, by name, as for `prepare_data`.

    Raises:
        UserError: a setting or source is wrong, also while the stream is read.
    """
    specs, chosen = as_specs(datasets), as_settings(settings)
    encoder = Encoder(tokenizer, chosen.assistant_only_loss, chosen.mask_history)
    sources = [
        _open(spec, label, specs, encoder, chosen) for spec, label in zip(specs, unique_labels(specs), strict=True)
    ]
    trained = [source for source in sources if not source.spec.is_given_eval]
    if not any(source.spec.role == "domain" for source in trained):
        raise UserError("datasets: names no source of role domain to train on: all are given eval sets.")
    _tell_left_out(specs, chosen)
    held_out = _collect_eval(sources, eval_rows, chosen)
    blend = _blend(trained, chosen, buffer_size)
    streams = [IterableDataset(SourceExamples(source.plan, source.holding, source.account)) for source in trained]
    train = mixed_stream(streams, blend, [source.given for source in trained])
    facts = {
        "end_of_turn": end_of_turn_facts(encoder, [source.plan.format for source in sources]),
        "settings": asdict(chosen),
        "fingerprint": _fingerprint(specs, chosen, tokenizer),
    }
    return StreamedData(train, held_out, sources, facts)


def _fingerprint(specs: Sequence[SourceSpec], settings: DataSettings, tokenizer: Any) -> str:
    described = [{"content": source_identity(spec), **asdict(spec)} for spec in specs]
    return fingerprint(
        {"sources": described, "settings": asdict(settings), "tokenizer": tokenizer_fingerprint(tokenizer)}
    )


def _open(
    spec: SourceSpec, label: str, specs: Sequence[SourceSpec], encoder: Encoder, settings: DataSettings
) -> StreamedSource:
    cleaner = Cleaner(settings.clean, encoder.tokenizer.all_special_tokens)
    source_format, _ = open_source(spec, Ledger(label, settings.bad_rows), streaming=True)
    plan = RowEncoder(spec, label, source_format, encoder, cleaner, NoSignatures(), settings)
    holding = Holding(eval_share_of(spec, specs, settings.eval_share), settings.seed)
    return StreamedSource(plan, holding, SourceAccount(Ledger(label, settings.bad_rows)), SampleCounts(), [])


def _tell_left_out(specs: Sequence[SourceSpec], settings: DataSettings) -> None:
    clean = settings.clean
    asked = {
        "clean.duplicates": clean.duplicates != "off",
        "clean.longer_than_mean": clean.longer_than_mean is not None,
        "clean.max_value_share": clean.max_value_share is not None,
        "stratify_by": any(spec.stratify_by for spec in specs),
        "balance_by": any(spec.balance_by for spec in specs),
    }
    left_out = [name for name, is_asked in asked.items() if is_asked]
    if left_out:
        logger.warning(
            "streaming: %s not applied, since all rows would have to be seen first; prepare the data without streaming "
            "to have it.",
            ", ".join(left_out),
        )


def _collect_eval(sources: Sequence[StreamedSource], eval_rows: int, settings: DataSettings) -> Dataset | None:
    """Fill the sources' eval parts and let none of their rows be trained on; the eval set goes source by source."""
    holding = [source for source in sources if 0 < source.holding.share < 1]
    quota = -(-eval_rows // len(holding)) if holding else 0
    for source in sources:
        source.eval_batches = list(_eval_batches(source, None if source.spec.is_given_eval else quota))
    batches = [batch for source in sources for batch in source.eval_batches]
    keys = np.unique(np.concatenate([np.empty(0, np.uint64), *(batch.column("key").to_numpy() for batch in batches)]))
    for source in sources:
        source.holding = replace(source.holding, eval_keys=keys)
    if batches:
        return Dataset(pa.Table.from_batches(batches).select(SAMPLE_COLUMNS))
    if settings.eval_share > 0:
        logger.warning("eval_share %g holds nothing out: the sources are too small to split.", settings.eval_share)
    return None


def _eval_batches(source: StreamedSource, quota: int | None) -> Iterator[pa.RecordBatch]:
    """The first `quota` samples of a source that are held out, or all of them; a given eval set is accounted for."""
    if not source.holding.share:
        return
    found = read = 0
    ledger = Ledger(source.plan.label, source.plan.settings.bad_rows)
    for block in source_blocks(source.spec, streaming=True, limits=STREAM_BLOCKS):
        if quota is not None and (found >= quota or read > _PATIENCE * quota / source.holding.share):
            break
        batches, account = source.plan.encode(block)
        ledger.merge(account.ledger)
        read = ledger.read
        for batch in batches:
            numbers = np.flatnonzero(is_held_out(batch, source.holding))
            numbers = numbers if quota is None else numbers[: quota - found]
            found += len(numbers)
            if len(numbers):
                yield batch.take(pa.array(numbers))
    if source.spec.is_given_eval:
        source.account.ledger = ledger


def _blend(trained: Sequence[StreamedSource], settings: DataSettings, buffer_size: int) -> Blend:
    general = [source.spec.role == "general" for source in trained]
    if not any(general):
        tell_no_general(settings.general_share)
    return Blend(
        names=[source.plan.label for source in trained],
        general=general,
        weights=_weights(trained),
        share=settings.general_share if any(general) else 0.0,
        unit=settings.share_unit,
        size_of=row_size(settings.share_unit),
        seed=settings.seed,
        max_repeats=settings.max_repeats,
        buffer_size=buffer_size,
    )


def _weights(trained: Sequence[StreamedSource]) -> list[float]:
    """General sources by the recipe's weights; domain sources by the size of their files, so that they end together."""
    sizes = [
        sum(file.stat().st_size for file in find_files(source.spec) or ()) if source.spec.role == "domain" else 1
        for source in trained
    ]
    is_known = all(sizes)  # a dataset on the Hub has none: then all are read equally fast
    return [
        source.spec.weight if source.spec.role == "general" else float(size if is_known else 1)
        for source, size in zip(trained, sizes, strict=True)
    ]


def _report(sources: Sequence[StreamedSource]) -> dict[str, Any]:
    settings = sources[0].plan.settings
    train = _sum(source.given for source in sources)
    general = _sum(source.given for source in sources if source.spec.role == "general")
    by = {name: part / train[name] if train[name] else 0.0 for name, part in general.items()}
    has_general = any(source.spec.role == "general" and not source.spec.is_given_eval for source in sources)
    return {
        "streaming": True,
        "sources": [_source_report(source) for source in sources],
        "general_share": {
            "unit": settings.share_unit,
            "asked": settings.general_share,
            "reached": by[settings.share_unit] if has_general else None,
            "by": by,
        },
        "train": train,
        "eval": {"rows": sum(source.eval_rows for source in sources)},
    }


def _source_report(source: StreamedSource) -> dict[str, Any]:
    given = source.given
    return {
        "source": source.plan.label,
        "path": source.spec.path,
        "role": source.spec.role,
        "format": source.plan.format,
        "files": [{"path": str(file)} for file in find_files(source.spec) or ()],
        "given_eval": source.spec.is_given_eval,
        **source.account.ledger.as_dict(),
        "held_out": source.account.held_out,
        "eval": source.eval_rows,
        "train": given.rows,
        "train_tokens": given.tokens,
        "train_supervised_tokens": given.supervised_tokens,
    }


def _sum(counts: Any) -> dict[str, int]:
    total = {"rows": 0, "tokens": 0, "supervised_tokens": 0}
    for each in counts:
        for name in total:
            total[name] += getattr(each, name)
    return total
