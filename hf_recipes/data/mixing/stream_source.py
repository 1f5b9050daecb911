"""One source of a recipe, read and tokenised as it is used, in bounded memory, without what is held out.

Like `mixed_examples`, on the private base class of the streams of datasets 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from datasets.iterable_dataset import _BaseExamplesIterable

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.data.choosing.near_duplicates import Signer
from hf_recipes.data.encode import RowEncoder
from hf_recipes.data.ledger import BadRow, Ledger, Place
from hf_recipes.data.mixing.hold_out import held_out
from hf_recipes.data.mixing.mixture import shuffled
from hf_recipes.data.reading.blocks import Block, Limits
from hf_recipes.data.reading.readers import read_blocks
from hf_recipes.data.reading.source_files import find_files, taken_whole
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import source_blocks

STREAM_BLOCKS = Limits(rows=512)
IN_EVAL_SET = "stands in the eval set too"
Array = np.ndarray[Any, Any]


class NoSignatures(Signer):
    """In place of a `Signer` where near duplicates are not looked for."""

    def bands(self, texts: Sequence[str]) -> Array:
        """No bands for any text."""
        return np.empty((len(texts), 0), np.uint64)


@dataclass
class SourceAccount:
    """What became of a source's rows in the pass that is being read."""

    ledger: Ledger
    held_out: int = 0  # samples left out of training by the hash of their row


@dataclass(frozen=True)
class Holding:
    """What is kept out of training: a share of the rows by their hash, and rows that stand in the eval set."""

    share: float
    seed: int
    eval_keys: Array = field(default_factory=lambda: np.empty(0, np.uint64))


class SourceExamples(_BaseExamplesIterable):
    """The training samples of a source: ``input_ids``, ``labels`` (int32 arrays), ``source``, ``row_id``.

    Its state is the number of blocks read and the position in the next, so that resuming reads, but does not tokenise,
    what came before. Every epoch takes the source's files in another order.

    Args:
        plan: turns blocks into samples.
        holding: what is not trained on.
        account: follows what is read; shared by all copies of this stream within the process.
    """

    def __init__(self, plan: RowEncoder, holding: Holding, account: SourceAccount) -> None:
        super().__init__()
        self.plan, self.holding, self.account = plan, holding, account
        self.epoch = 0
        self._sleep_on_threads_shutdown = False

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"block": 0, "row": 0, "ledger": None, "held_out": 0, "type": type(self).__name__}
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        state: dict[str, Any] = self._state_dict or self._init_state_dict()
        account, plan = self.account, self.plan
        account.ledger, account.held_out = _ledger(plan, state["ledger"]), state["held_out"]
        for number, block in enumerate(_blocks(plan.spec, f"{self.holding.seed}:{self.epoch}")):
            if number < state["block"]:
                continue
            for row in islice(self._rows(block), state["row"], None):
                state["row"] += 1
                yield row["row_id"], row
            state.update(block=number + 1, row=0, ledger=account.ledger.as_dict(), held_out=account.held_out)
        _tell_end(plan, account.ledger, is_first=self.epoch == 0)

    def _rows(self, block: Block) -> Iterator[Mapping[str, Any]]:
        batches, encoded = self.plan.encode(block)
        self.account.ledger.merge(encoded.ledger)
        for batch in batches:
            yield from samples_of(batch, self._trained_on(batch))

    def _trained_on(self, batch: pa.RecordBatch) -> Array:
        """The numbers of the samples that are neither held out nor in the eval set; the others are counted."""
        out = is_held_out(batch, self.holding)
        leaked = np.isin(batch.column("key").to_numpy(), self.holding.eval_keys) & ~out
        self.account.held_out += int(out.sum())
        ledger = self.account.ledger
        for number in np.flatnonzero(leaked):
            ledger.samples -= 1
            if batch.column("part")[number].as_py() == 0:
                ledger.kept -= 1
                ledger.drop(Place.parse(batch.column("row_id")[number].as_py()), BadRow(IN_EVAL_SET))
        return np.flatnonzero(~(out | leaked))

    def shift_rngs(self, value: int) -> SourceExamples:
        """Called by datasets with the epoch."""
        shifted = copy(self)
        shifted.epoch = self.epoch + value
        return shifted

    def shuffle_data_sources(self, generator: np.random.Generator) -> SourceExamples:
        """The same: the order of the files follows from the seed and the epoch."""
        return self

    @property
    def num_shards(self) -> int:
        return 1


def is_held_out(batch: pa.RecordBatch, holding: Holding) -> Array:
    """Which samples of an encoded batch are for evaluation."""
    return held_out(batch.column("group").to_numpy(), holding.share, holding.seed)


def samples_of(batch: pa.RecordBatch, numbers: Array) -> Iterator[Mapping[str, Any]]:
    """Samples of an encoded batch, with token ids and labels as int32 arrays of their own."""
    tokens = {name: _slices(batch.column(name)) for name in ("input_ids", "labels")}
    for number in numbers.tolist():
        yield {
            **{name: values[starts[number] : starts[number + 1]].copy() for name, (values, starts) in tokens.items()},
            "source": batch.column("source")[number].as_py(),
            "row_id": batch.column("row_id")[number].as_py(),
        }


def _slices(lists: pa.ListArray) -> tuple[Array, Array]:
    return lists.values.to_numpy(), lists.offsets.to_numpy()


def _blocks(spec: SourceSpec, order: str) -> Iterator[Block]:
    """All blocks of a source, its files in an order decided by `order`."""
    files = find_files(spec)
    if files is None or taken_whole(files):
        yield from source_blocks(spec, streaming=True, limits=STREAM_BLOCKS)
        return
    for number in shuffled(len(files), order):
        yield from read_blocks(files[number], STREAM_BLOCKS)


def _ledger(plan: RowEncoder, values: dict[str, Any] | None) -> Ledger:
    if values is None:
        return Ledger(plan.label, plan.settings.bad_rows)
    return Ledger.from_dict(plan.label, values)


def _tell_end(plan: RowEncoder, ledger: Ledger, is_first: bool) -> None:
    if not ledger.kept:
        raise UserError(f"All {ledger.read} rows of '{plan.spec.path}' were dropped: {ledger.reasons()}.")
    if is_first and ledger.dropped.counts:
        dropped = ledger.dropped.counts.total()
        logger.warning("%s: %d of %d rows dropped: %s.", plan.label, dropped, ledger.read, ledger.reasons())
