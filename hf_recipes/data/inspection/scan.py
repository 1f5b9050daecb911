"""What the tokens of a prepared dataset look like: lengths, what answers begin and end with, ends, doubled starts.

Works on Arrow columns a few thousand rows at a time; only a few numbers a row stay in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hf_recipes.core.labels import IGNORED_LABEL

SCAN_ROWS = 100_000
CHUNK_ROWS = 2_000
SHORT_TOKENS = 8  # "not applicable" and the end of the turn
MAX_SHORT = 10_000  # different ones; with more, answers are short because they should be


@dataclass
class Ends:
    """How many conversations of a source there are, and how many of them learn the end-of-turn token."""

    samples: int = 0
    learn_it: int = 0


@dataclass
class TokenScan:
    """The scanned rows in numbers.

    `lengths` and `learned` (int32, in the dataset's order) are tokens and learned tokens of every scanned row; `first`
    and `last` count the token ids that answers (learned stretches of conversations) begin and end with;
    `doubled_bos` holds the rows that begin with two BOS tokens, `heaviest` the answer that is most frequent as a whole,
    `short` the answers of a few tokens.
    """

    of_rows: int
    lengths: np.ndarray
    learned: np.ndarray
    ends: dict[str, Ends] = field(default_factory=dict)
    first: Counter[int] = field(default_factory=Counter)
    last: Counter[int] = field(default_factory=Counter)
    doubled_bos: list[str] = field(default_factory=list)
    conversations: int = 0
    heaviest: Heaviest | None = None
    short: list[ShortAnswer] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows scanned."""
        return len(self.lengths)

    @property
    def answers(self) -> int:
        """Answers seen."""
        return self.first.total()


@dataclass(frozen=True)
class Heaviest:
    """The most frequent answer: its learned tokens and in how many conversations they are all that is learned."""

    token_ids: list[int]
    count: int


@dataclass(frozen=True)
class ShortAnswer:
    """All that some conversations learn, in a few tokens; how many of them, and the first row."""

    token_ids: list[int]
    count: int
    row_id: str


def scan_tokens(
    dataset: Any,
    *,
    chat_sources: Collection[str],
    end_of_turn_id: int | None,
    bos_token_id: int | None,
    limit: int = SCAN_ROWS,
) -> TokenScan:
    """Scan a `datasets.Dataset` with the columns ``input_ids``, ``labels``, ``source`` and ``row_id``.

    Args:
        dataset: at most `limit` rows of it are read, evenly spaced.
        chat_sources: the sources whose samples are conversations; only their answers are counted.
        end_of_turn_id: the token that ends an assistant turn.
        bos_token_id: the token that may stand once at the start.
        limit: rows to read; 100,000 take about two seconds.
    """
    positions = spaced(len(dataset), limit)
    lengths, learned = [], []
    seen = _Answers()
    scan = TokenScan(len(dataset), np.zeros(0, np.int32), np.zeros(0, np.int32))
    for table in _tables(dataset, positions):
        chunk = _Chunk.of(table, chat_sources)
        lengths.append(chunk.lengths)
        learned.append(chunk.learned_counts)
        _count_ends(scan, chunk, end_of_turn_id)
        _count_edges(scan, chunk)
        _find_doubled_bos(scan, chunk, bos_token_id)
        seen.add(chunk)
    scan.lengths = np.concatenate(lengths) if lengths else scan.lengths
    scan.learned = np.concatenate(learned) if learned else scan.learned
    scan.heaviest = seen.heaviest()
    scan.short = seen.short()
    return scan


def spaced(rows: int, limit: int) -> np.ndarray:
    """Positions of at most `limit` rows out of `rows`, ascending and evenly spaced; all of them where they fit."""
    return np.arange(rows) if rows <= limit else np.arange(limit) * rows // limit


def _tables(dataset: Any, positions: np.ndarray) -> Iterator[pa.Table]:
    columns = dataset.with_format("arrow")
    for start in range(0, len(positions), CHUNK_ROWS):
        yield columns[positions[start : start + CHUNK_ROWS].tolist()]


@dataclass(frozen=True)
class _Chunk:
    """Some rows with their lists laid end to end; row i is ``[starts[i], starts[i + 1])`` there."""

    input_ids: np.ndarray
    labels: np.ndarray
    starts: np.ndarray
    sources: np.ndarray
    row_ids: pa.ChunkedArray
    is_chat: np.ndarray

    @classmethod
    def of(cls, table: pa.Table, chat_sources: Collection[str]) -> _Chunk:
        lengths = pc.list_value_length(table["input_ids"]).to_numpy()
        sources = np.array(table["source"].to_pylist(), dtype=object)
        return cls(
            input_ids=pc.list_flatten(table["input_ids"]).to_numpy(),
            labels=pc.list_flatten(table["labels"]).to_numpy(),
            starts=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            sources=sources,
            row_ids=table["row_id"],
            is_chat=np.isin(sources, list(chat_sources)),
        )

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts).astype(np.int32)

    @property
    def learned(self) -> np.ndarray:
        return self.labels != IGNORED_LABEL

    @property
    def learned_counts(self) -> np.ndarray:
        return self.count(self.learned).astype(np.int32)

    def count(self, flags: np.ndarray) -> np.ndarray:
        """How many of the token `flags` are set in each row."""
        before = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
        return before[self.starts[1:]] - before[self.starts[:-1]]


def _count_ends(scan: TokenScan, chunk: _Chunk, end_of_turn_id: int | None) -> None:
    has_end = chunk.count(chunk.labels == end_of_turn_id) > 0
    for source in set(chunk.sources[chunk.is_chat]):
        of_source = chunk.sources == source
        ends = scan.ends.setdefault(source, Ends())
        ends.samples += int(of_source.sum())
        ends.learn_it += int(has_end[of_source].sum())
    scan.conversations += int(chunk.is_chat.sum())


def _count_edges(scan: TokenScan, chunk: _Chunk) -> None:
    """Count the tokens at which learned stretches begin and end; a stretch ends with its row."""
    learned = chunk.learned & np.repeat(chunk.is_chat, chunk.lengths)
    borders = chunk.starts[1:-1]  # where one row ends and the next begins
    before, after = np.zeros_like(learned), np.zeros_like(learned)
    before[1:], after[:-1] = learned[:-1], learned[1:]
    before[borders[borders < len(learned)]] = False
    after[borders[borders > 0] - 1] = False
    for counter, flags in ((scan.first, learned & ~before), (scan.last, learned & ~after)):
        tokens, counts = np.unique(chunk.labels[flags], return_counts=True)
        counter.update(dict(zip(tokens.tolist(), counts.tolist(), strict=True)))


def _find_doubled_bos(scan: TokenScan, chunk: _Chunk, bos_token_id: int | None) -> None:
    if bos_token_id is None:
        return
    (long,) = np.nonzero(chunk.lengths >= 2)
    at = chunk.starts[long]
    doubled = (chunk.input_ids[at] == bos_token_id) & (chunk.input_ids[at + 1] == bos_token_id)
    scan.doubled_bos += [chunk.row_ids[int(row)].as_py() for row in long[doubled]]


class _Answers:
    """All that is learned of every conversation, counted as a whole, by a hash; one example of each stays as bytes."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._leader: tuple[int, np.ndarray] | None = None
        self._short: dict[int, tuple[list[int], str]] = {}

    def add(self, chunk: _Chunk) -> None:
        learned = chunk.learned
        for row in np.nonzero(chunk.is_chat)[0]:
            start, end = chunk.starts[row], chunk.starts[row + 1]
            said = chunk.labels[start:end][learned[start:end]]
            key = hash(said.tobytes())
            self._counts[key] += 1
            if len(said) <= SHORT_TOKENS and key not in self._short and len(self._short) < MAX_SHORT:
                self._short[key] = (said.tolist(), chunk.row_ids[int(row)].as_py())
            if self._leader is None or self._counts[key] > self._counts[self._leader[0]]:
                self._leader = (key, said)

    def short(self) -> list[ShortAnswer]:
        return [ShortAnswer(said, self._counts[key], row_id) for key, (said, row_id) in self._short.items()]

    def heaviest(self) -> Heaviest | None:
        if self._leader is None:
            return None
        key, said = self._leader
        return Heaviest(said.tolist(), self._counts[key])
