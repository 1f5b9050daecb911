"""One source from its files to samples: read → format → tokenise and mask → fit the length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.log import logger
from hf_recipes.data.check import check_bad_rows, open_source
from hf_recipes.data.formats import Example, to_example
from hf_recipes.data.ledger import BadRow, Ledger, Place
from hf_recipes.data.lengths import OVERLONG, fit_length, is_length_fault
from hf_recipes.data.masks import Encoded, Encoder
from hf_recipes.data.mixture import check_share
from hf_recipes.data.sources import SourceSpec, find_files
from hf_recipes.data.split import duplicate_key

CHUNK_ROWS = 256


@dataclass(frozen=True)
class Settings:
    """The choices that, with the sources, decide what comes out; see `prepare_data`."""

    max_length: int | None
    eval_share: float
    general_share: float
    share_unit: str
    assistant_only_loss: bool
    overlong: str
    bad_rows: str
    seed: int

    def __post_init__(self) -> None:
        check_bad_rows(self.bad_rows)
        check_share(self.general_share, self.share_unit)
        if self.overlong not in OVERLONG:
            raise UserError(f"overlong must be one of {', '.join(OVERLONG)}, not '{self.overlong}'.")
        if not 0 <= self.eval_share < 1:
            raise UserError(f"eval_share is the part held out, from 0 to below 1, not {self.eval_share}.")
        if self.max_length is not None and self.max_length < 2:
            raise UserError(f"max_length must be at least 2 tokens, not {self.max_length}.")


@dataclass
class EncodedSource:
    """A source with its kept samples, where they came from, their duplicate keys, and which go to train and eval."""

    spec: SourceSpec
    label: str
    ledger: Ledger
    format: str = ""
    files: list[dict[str, str]] = field(default_factory=list)
    contents: str = ""
    samples: list[Encoded] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    train: list[int] = field(default_factory=list)
    eval: list[int] = field(default_factory=list)


def encode_source(spec: SourceSpec, label: str, encoder: Encoder, settings: Settings) -> EncodedSource:
    """Read and encode a source, with every row accounted for; raises `UserError` when no sample is left."""
    source = EncodedSource(spec, label, Ledger(label, settings.bad_rows))
    files = find_files(source.spec)
    source.files = [{"path": str(file), "sha256": sha256_of_file(file)} for file in files or ()]
    source.format, rows = open_source(source.spec, source.ledger)
    contents = hashlib.sha256()
    for chunk in _chunks(_examples(source, rows)):
        for (place, example), encoded in zip(chunk, encoder.encode([example for _, example in chunk]), strict=True):
            contents.update(repr(example).encode(errors="surrogatepass"))
            _keep(source, place, example, encoded, encoder, settings)
    source.contents = contents.hexdigest()
    if not source.ledger.kept:
        raise UserError(_nothing_left(source, settings))
    return source


def _examples(source: EncodedSource, rows: Iterator[tuple[Place, dict[str, Any]]]) -> Iterator[tuple[Place, Example]]:
    for place, row in rows:
        try:
            yield place, to_example(row, source.format)
        except BadRow as fault:
            source.ledger.bad(place, fault)


def _chunks(items: Iterator[tuple[Place, Example]]) -> Iterator[list[tuple[Place, Example]]]:
    while chunk := list(islice(items, CHUNK_ROWS)):
        yield chunk


def _keep(
    source: EncodedSource,
    place: Place,
    example: Example,
    encoded: Encoded | BadRow,
    encoder: Encoder,
    settings: Settings,
) -> None:
    ledger = source.ledger
    if isinstance(encoded, BadRow):
        ledger.bad(place, encoded)
        return
    try:
        encoded = fit_length(example, encoded, encoder, settings.max_length, settings.overlong)
    except BadRow as fault:
        ledger.drop(place, fault)
        return
    ledger.kept += 1
    ledger.truncated += encoded.truncated
    ledger.shortened += encoded.shortened
    source.samples.append(encoded)
    source.places.append(place)
    source.keys.append(duplicate_key(example))


def _nothing_left(source: EncodedSource, settings: Settings) -> str:
    too_long = any(is_length_fault(reason) for reason in source.ledger.dropped)
    advice = "correct the rows"
    if too_long:
        advice = f"raise max_length (now {settings.max_length})"
        advice += " or set overlong: shorten_prompt" if settings.overlong == "drop" else ""
    return f"All {source.ledger.read} rows of '{source.spec.path}' were dropped: {source.ledger.reasons()}; {advice}."


def tell_losses(source: EncodedSource) -> None:
    """Log what was dropped, cut and shortened."""
    ledger = source.ledger
    if ledger.dropped:
        count = ledger.dropped.total()
        logger.warning("%s: %d of %d rows dropped: %s.", source.label, count, ledger.read, ledger.reasons())
    for word, count in (("cut at max_length", ledger.truncated), ("shortened at the prompt's start", ledger.shortened)):
        if count:
            logger.info("%s: %d of %d samples %s.", source.label, count, ledger.kept, word)
