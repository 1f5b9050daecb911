"""One block of rows → samples: read → format → clean → tokenise and mask → fit the length, every row accounted for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from hf_recipes.data.choosing.keys import RowKeys, row_keys, value_hash, whole_text
from hf_recipes.data.choosing.near_duplicates import Signer
from hf_recipes.data.clean.cleaner import Cleaner
from hf_recipes.data.ledger import BadRow, Ledger, Place
from hf_recipes.data.masking.lengths import fit_length
from hf_recipes.data.masking.masks import Encoded, Encoder
from hf_recipes.data.reading.blocks import Block
from hf_recipes.data.reading.formats import Example, to_example
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import block_rows
from hf_recipes.data.settings import DataSettings
from hf_recipes.data.store import SCHEMA, BlockAccount

ROWS_AT_ONCE = 512
_FIELDS_OF_SPEC = ("group_by", "stratify_by", "balance_by")


@dataclass(frozen=True)
class Row:
    """A row on its way: where it lies, what it says, and the values of the fields that the source names."""

    place: Place
    example: Example
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class RowEncoder:
    """All that turns rows of one source into samples; can be sent to another process."""

    spec: SourceSpec
    label: str
    format: str
    encoder: Encoder
    cleaner: Cleaner
    signer: Signer
    settings: DataSettings

    def encode(self, block: Block) -> tuple[list[pa.RecordBatch], BlockAccount]:
        """Encode a block of at most `readers.BLOCK_ROWS` rows.

        Raises:
            UserError: a faulty row under ``bad_rows: fail``.
        """
        ledger = Ledger(self.label, self.settings.bad_rows)
        work = _BlockWork(self, ledger)
        rows = self._rows(block, ledger, work)
        batches = []
        while some := list(islice(rows, ROWS_AT_ONCE)):
            batches.append(work.encode(some))
        return batches, BlockAccount(ledger, (work.encoded_rows, work.encoded_tokens), work.values)

    def _rows(self, block: Block, ledger: Ledger, work: _BlockWork) -> Iterator[Row]:
        """The rows that can be read and stay after cleaning."""
        for place, row in block_rows(block, self.spec, ledger):
            try:
                fields = {name: _field(row, wanted, name) for name, wanted in self._wanted_fields()}
                cleaned = self.cleaner.clean(to_example(row, self.format))
            except BadRow as fault:
                ledger.bad(place, fault)
                continue
            for rule, detail in cleaned.changes.items():
                ledger.changed(place, rule, detail)
            for what, detail in cleaned.notes.items():
                ledger.note(place, what, detail)
            yield Row(place, cleaned.example, fields)

    def _wanted_fields(self) -> list[tuple[str, str]]:
        return [(name, wanted) for name in _FIELDS_OF_SPEC if (wanted := getattr(self.spec, name))]


def _field(row: Mapping[str, Any], wanted: str, key: str) -> Any:
    if row.get(wanted) is None:
        raise BadRow(f"field '{wanted}', which {key} names, is {'null' if wanted in row else 'missing'}")
    return row[wanted]


@dataclass
class _BlockWork:
    """The state of one block's encoding."""

    plan: RowEncoder
    ledger: Ledger
    encoded_rows: int = 0
    encoded_tokens: int = 0
    values: dict[int, str] = field(default_factory=dict)

    def encode(self, rows: list[Row]) -> pa.RecordBatch:
        columns = _Columns()
        signed = self.plan.signer.bands([whole_text(row.example) for row in rows])
        for row, bands, encoded in zip(
            rows, signed, self.plan.encoder.encode([row.example for row in rows]), strict=True
        ):
            if isinstance(encoded, BadRow):
                self.ledger.bad(row.place, encoded)
                continue
            self.encoded_rows += 1
            self.encoded_tokens += len(encoded.input_ids)
            self._keep(row, encoded, bands, columns)
        return columns.batch(self.plan.label)

    def _keep(self, row: Row, encoded: Encoded, bands: np.ndarray[Any, Any], columns: _Columns) -> None:
        settings, ledger = self.plan.settings, self.ledger
        try:
            parts = fit_length(row.example, encoded, self.plan.encoder, settings.max_length, settings.overlong)
        except BadRow as fault:
            ledger.drop(row.place, fault)
            return
        ledger.kept += 1
        ledger.samples += len(parts)
        ledger.truncated += any(part.truncated for part in parts)
        ledger.shortened += any(part.shortened for part in parts)
        ledger.lost_answers += sum(part.lost_answers for part in parts)
        keys = row_keys(row.example)
        codes = {name: self._code(value) for name, value in row.fields.items()}
        for number, part in enumerate(parts):
            columns.add(part, number, row.place, len(encoded.input_ids), keys, codes, bands)

    def _code(self, value: Any) -> int:
        code = value_hash(value)
        self.values.setdefault(code, str(value))
        return code


class _Columns:
    """Samples collected for one record batch of the store."""

    def __init__(self) -> None:
        self.samples: list[Encoded] = []
        self.others: dict[str, list[Any]] = {name: [] for name in SCHEMA.names[3:-1]}
        self.bands: list[np.ndarray[Any, Any]] = []

    def add(
        self,
        sample: Encoded,
        part: int,
        place: Place,
        row_tokens: int,
        keys: RowKeys,
        codes: Mapping[str, int],
        bands: np.ndarray[Any, Any],
    ) -> None:
        self.samples.append(sample)
        self.bands.append(bands)
        values = {
            "row_id": str(place),
            "length": len(sample.input_ids),
            "supervised_tokens": sample.supervised_tokens,
            "row_tokens": row_tokens,
            "part": part,
            "key": keys.key,
            "prompt_key": keys.prompt_key,
            "answer_key": keys.answer_key,
            "group": codes.get("group_by", keys.key),
            "stratum": codes.get("stratify_by", 0),
            "balance": codes.get("balance_by", 0),
        }
        for name, value in values.items():
            self.others[name].append(value)

    def batch(self, label: str) -> pa.RecordBatch:
        arrays = [
            _lists([sample.input_ids for sample in self.samples], np.int32),
            _lists([sample.labels for sample in self.samples], np.int32),
            pa.array([label] * len(self.samples), pa.string()),
            *(pa.array(self.others[name], SCHEMA.field(name).type) for name in self.others),
            _lists(self.bands, np.uint64),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _lists(rows: list[np.ndarray[Any, Any]], dtype: type[np.generic]) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.concatenate(rows).astype(dtype, copy=False) if rows else np.empty(0, dtype)
    return pa.ListArray.from_arrays(offsets, pa.array(values))
