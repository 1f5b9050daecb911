"""One source of a recipe, from where it lies to a store that holds all of its samples."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_recipes.core.cores import usable_cores
from hf_recipes.core.errors import UserError
from hf_recipes.data import workers
from hf_recipes.data.check import open_source
from hf_recipes.data.choosing.near_duplicates import Signer
from hf_recipes.data.choosing.samples import PreparedSource
from hf_recipes.data.clean.cleaner import Cleaner
from hf_recipes.data.encode import RowEncoder
from hf_recipes.data.fingerprint import fingerprint, tokenizer_fingerprint
from hf_recipes.data.ledger import Ledger
from hf_recipes.data.masking.lengths import is_length_fault
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import find_files, source_identity
from hf_recipes.data.settings import DataSettings
from hf_recipes.data.store import BlockStore
from hf_recipes.data.workers import Shard, encode_blocks

_LARGE_BYTES = 32 << 20  # below it, starting processes costs more than it saves
# Keys of a source that decide which samples are used, not what the samples are.
_NOT_OF_THE_SAMPLES = ("role", "weight", "eval_share")


@dataclass(frozen=True)
class Maker:
    """What all sources of a preparation are made with."""

    tokenizer: Any
    settings: DataSettings
    root: Path
    num_proc: int | None = None

    @cached_property
    def encoder(self) -> Encoder:
        """Turns examples into tokens."""
        return Encoder(self.tokenizer, self.settings.assistant_only_loss, self.settings.mask_history)

    @cached_property
    def tokenizer_key(self) -> str:
        """What the tokenizer and its template are."""
        return tokenizer_fingerprint(self.tokenizer)

    def source_key(self, spec: SourceSpec, label: str, content: list[str]) -> str:
        """What the samples of a source are decided by: content, way of reading, settings, tokenizer."""
        described = {
            item.name: getattr(spec, item.name) for item in fields(spec) if item.name not in _NOT_OF_THE_SAMPLES
        }
        return fingerprint(
            {
                "content": content,
                "source": described,
                "label": label,
                "blocks": asdict(workers.LIMITS),
                "settings": self.settings.for_encoding(),
                "tokenizer": self.tokenizer_key,
            }
        )


def prepare_source(spec: SourceSpec, label: str, maker: Maker) -> PreparedSource:
    """Encode what the source's store does not hold yet.

    Raises:
        UserError: the source cannot be read, or no row of it is left.
    """
    source = encode_source(spec, label, maker)
    if not source.account.ledger.kept:
        raise UserError(_nothing_left(spec, source.account.ledger, maker.settings))
    return source


def encode_source(spec: SourceSpec, label: str, maker: Maker, shard: Shard | None = None) -> PreparedSource:
    """Encode what the source's store does not hold yet, of one shard if asked.

    Raises:
        UserError: the source cannot be read, or a row is faulty under ``bad_rows: fail``.
    """
    source_format, _ = open_source(spec, Ledger(label, maker.settings.bad_rows))
    content = source_identity(spec)
    key = maker.source_key(spec, label, content)
    store = BlockStore(maker.root / "sources" / key)
    if not store.is_whole():
        cleaner = Cleaner(maker.settings.clean, maker.tokenizer.all_special_tokens)
        plan = RowEncoder(spec, label, source_format, maker.encoder, cleaner, Signer(), maker.settings)
        encode_blocks(spec, store, plan, _processes(spec, maker.num_proc), shard)
    return PreparedSource(spec, label, source_format, key, _files(spec, content), store)


def _files(spec: SourceSpec, content: list[str]) -> list[dict[str, str]]:
    files = find_files(spec) or []
    return [
        {"path": str(file), "sha256": line.split()[0].removeprefix("sha256:")}
        for file, line in zip(files, content, strict=False)
    ]


def _processes(spec: SourceSpec, asked: int | None) -> int:
    if asked is not None:
        return max(1, asked)
    files = find_files(spec)
    if files is not None and sum(file.stat().st_size for file in files) < _LARGE_BYTES:
        return 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, usable_cores() // ranks)


def _nothing_left(spec: SourceSpec, ledger: Ledger, settings: DataSettings) -> str:
    advice = "correct the rows"
    if any(is_length_fault(reason) for reason in ledger.dropped.counts):
        advice = f"raise max_length (now {settings.max_length})"
        advice += " or set overlong: shorten_prompt" if settings.overlong == "drop" else ""
    return f"All {ledger.read} rows of '{spec.path}' were dropped: {ledger.reasons()}; {advice}."
