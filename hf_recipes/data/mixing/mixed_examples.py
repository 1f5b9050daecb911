"""The stream behind a mixed `datasets.IterableDataset`: `interleave.Schedule` over the streams of its sources.

Written on the private base class of the streams of datasets 5 (nothing public tells a generator the epoch, or lets it
be resumed other than by reading everything again); its tests hold what is relied upon.

Every source is read in windows of `Blend.buffer_size` rows, shuffled by seed, epoch, source and window. A shuffle
buffer of datasets loses its rows on resuming; a window is read again from where it began, so the rest is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from datasets.iterable_dataset import DataSourcesShufflingDisallowed, ExamplesIterable, _BaseExamplesIterable

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.data.mixing.interleave import Schedule
from hf_recipes.data.mixing.mixed_columns import SOURCE, check_columns
from hf_recipes.data.mixing.mixture import Mixture, shuffled, tell_short
from hf_recipes.data.mixing.sample_sizes import row_size

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Blend:
    """What decides a mixed stream besides its sources.

    Attributes:
        names: of each source, what its rows have in the column ``source`` unless they have that column.
        general: of each source, whether it belongs to the general part.
        weights: of each source, its weight within its part.
        share: general part of the whole.
        unit: what the share counts.
        size_of: size of a row in that unit.
        seed: decides the order of rows, with the epoch.
        max_repeats: how often the general sources may be read.
        buffer_size: rows of a source that are shuffled among each other; 1 for none.
    """

    names: Sequence[str]
    general: Sequence[bool]
    weights: Sequence[float]
    share: float
    unit: str
    size_of: Callable[[Row], int]
    seed: int
    max_repeats: int
    buffer_size: int


@dataclass
class SampleCounts:
    """What was given of one source in a pass."""

    rows: int = 0
    tokens: int = 0
    supervised_tokens: int = 0

    def add(self, row: Row) -> None:
        """Count a tokenised row."""
        self.rows += 1
        self.tokens += row_size("tokens")(row)
        self.supervised_tokens += row_size("supervised_tokens")(row)


@dataclass
class _Reader:
    """One source in windows of shuffled rows.

    `state` is all that is needed to go on later: the source's own state where the window began, the window's number
    and the position in it.
    """

    examples: _BaseExamplesIterable
    state: dict[str, Any]
    order: str  # seed, epoch and source
    buffer_size: int
    size_of: Callable[[Row], int]
    window: list[tuple[Any, Row]] = field(default_factory=list)
    size: int | None = None  # of the row at the position; None when the source is used up

    def start(self) -> None:
        """Read the window of `state`, from the beginning or from where it was left."""
        if self.state["start"] is not None:
            self.examples.load_state_dict(self.state["start"])
        self.rows = iter(self.examples)
        self._read_window()

    def restart(self) -> None:
        """Read the source once more from its beginning."""
        self.examples._init_state_dict()
        self.state.update(start=None, window=0, position=0, lap=self.state["lap"] + 1)
        self.start()

    def take(self) -> tuple[Any, Row]:
        """The row at the position; the position moves on."""
        row = self.window[self.state["position"]]
        self.state["position"] += 1
        if self.state["position"] == len(self.window):
            self.state.update(window=self.state["window"] + 1, position=0)
            self._read_window()
        else:
            self._measure()
        return row

    def _read_window(self) -> None:
        self.state["start"] = self.examples.state_dict()
        order = f"{self.order}:{self.state['lap']}:{self.state['window']}"
        rows = list(islice(self.rows, self._window_size(order)))
        self.window = [rows[index] for index in shuffled(len(rows), order)]
        self._measure()

    def _window_size(self, order: str) -> int:
        """The first window is up to a half shorter, so that rows on both sides of a border meet in other epochs."""
        if self.state["window"]:
            return self.buffer_size
        return self.buffer_size - int(shuffled(self.buffer_size // 2 + 1, order)[0])

    def _measure(self) -> None:
        self.size = self.size_of(self.window[self.state["position"]][1]) if self.window else None


class MixedExamples(_BaseExamplesIterable):
    """Rows of several streams by the shares of a `Blend`. One shard: ranks take every n-th row of the same stream.

    `counts`, where given, follow what is given of each source; all copies of this stream in a process share them.
    """

    def __init__(
        self, ex_iterables: Sequence[_BaseExamplesIterable], blend: Blend, counts: Sequence[SampleCounts] = ()
    ) -> None:
        super().__init__()
        self.ex_iterables = list(ex_iterables)
        self.blend = blend
        self.counts = counts
        self.epoch = 0

    def _init_state_dict(self) -> dict[str, Any]:
        for examples in self.ex_iterables:
            examples._init_state_dict()
        self._state_dict = {
            "readers": [{"start": None, "window": 0, "position": 0, "lap": 0} for _ in self.ex_iterables],
            "used": [0.0] * len(self.ex_iterables),
            "sizes": [0.0, 0.0],
            "largest": 0,
            "counts": [asdict(SampleCounts()) for _ in self.counts],
            "type": type(self).__name__,
        }
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[Any, Row]]:
        state: dict[str, Any] = self._state_dict or self._init_state_dict()
        run = _Run(self.blend, self.ex_iterables, state, self.epoch)
        for counts, values in zip(self.counts, state["counts"], strict=True):
            vars(counts).update(vars(SampleCounts(**values)))
        while (source := run.next_source()) is not None:
            key, row = run.take(source)
            if self.counts:
                self.counts[source].add(row)
                state["counts"][source] = asdict(self.counts[source])
            yield key, row if SOURCE in row else {**row, SOURCE: self.blend.names[source]}
        run.tell_end()

    def shift_rngs(self, value: int) -> MixedExamples:
        """Called by datasets with the epoch, and with the number of the loader's process (0, as there is one shard)."""
        shifted = copy(self)
        shifted.epoch = self.epoch + value
        return shifted

    def shuffle_data_sources(self, generator: np.random.Generator) -> MixedExamples:
        """Shuffle the shards of every source by the seed and `generator`, which datasets makes of the epoch."""
        drawn = int(deepcopy(generator).integers(1 << 32))
        shuffled_shards = copy(self)
        shuffled_shards.ex_iterables = [
            _shuffle_shards(examples, np.random.default_rng([self.blend.seed, drawn])) for examples in self.ex_iterables
        ]
        return shuffled_shards

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> _BaseExamplesIterable:
        """The whole stream for the first, nothing for the others."""
        return self if index == 0 else ExamplesIterable(_nothing, {})

    def reshard_data_sources(self) -> MixedExamples:
        """The same: there is one shard."""
        return self

    @property
    def num_shards(self) -> int:
        return 1


class _Run:
    """One pass over a mixed stream, from where `state` is; `state` follows it."""

    def __init__(
        self, blend: Blend, streams: Sequence[_BaseExamplesIterable], state: dict[str, Any], epoch: int
    ) -> None:
        self.blend, self.state = blend, state
        self.schedule = Schedule(blend.share, blend.general, blend.weights, state["used"], state["sizes"])
        self.readers = [
            _Reader(examples, reader, f"{blend.seed}:{epoch}:{source}", blend.buffer_size, blend.size_of)
            for source, (examples, reader) in enumerate(zip(streams, state["readers"], strict=True))
        ]
        self.general = [
            reader for reader, general in zip(self.readers, blend.general, strict=True) if general and blend.share
        ]
        self.domain = [reader for reader, general in zip(self.readers, blend.general, strict=True) if not general]
        for reader in [*self.domain, *self.general]:
            reader.start()
        if not any(state["sizes"]) and _all_used_up(self.domain):
            raise UserError("The domain streams hold no rows: give at least one row to learn from.")
        _check_columns(blend.names, self.readers)
        self.is_told = self._is_short()

    def next_source(self) -> int | None:
        if self.general and _all_used_up(self.general):
            self._start_lap()
        if not self.is_told and self._is_short():
            self.is_told = True
            logger.warning("The general stream is used up: from here on, the mixture has domain rows only.")
        return self.schedule.pick([reader.size for reader in self.readers])

    def take(self, source: int) -> tuple[Any, Row]:
        size = self.readers[source].size or 0
        self.schedule.take(source, size)
        if self.blend.general[source]:
            self.state["largest"] = max(self.state["largest"], size)
        return self.readers[source].take()

    def tell_end(self) -> None:
        uses = self.general[0].state["lap"] + self._has_begun_lap() if self.general else 0
        tell_short(Mixture([], self.schedule.reached, self.blend.share, self._is_short(), uses), self.blend.unit)

    def _start_lap(self) -> None:
        """Read the general sources once more where that is allowed, needed, and was of use the last time."""
        allowed = self.general[0].state["lap"] + 1 < self.blend.max_repeats
        needed = not _all_used_up(self.domain) or self.schedule.sizes[1] < self.schedule.wanted
        if allowed and needed and self._has_begun_lap():
            for reader in self.general:
                reader.restart()
            self.schedule.start_lap()

    def _has_begun_lap(self) -> bool:
        return any(used for used, general in zip(self.schedule.used, self.blend.general, strict=True) if general)

    def _is_short(self) -> bool:
        missing = self.schedule.wanted - self.schedule.sizes[1]
        return _all_used_up(self.general) and missing > self.state["largest"] / 2


def _all_used_up(readers: Sequence[_Reader]) -> bool:
    return all(reader.size is None for reader in readers)


def _check_columns(names: Sequence[str], readers: Sequence[_Reader]) -> None:
    """Raise `UserError` when the sources' next rows have unequal columns."""
    heads = [
        (name, reader.window[reader.state["position"]][1])
        for name, reader in zip(names, readers, strict=True)
        if reader.size is not None
    ]
    for name, row in heads:
        check_columns(heads[0][0], heads[0][1], name, row)


def _shuffle_shards(examples: _BaseExamplesIterable, generator: np.random.Generator) -> _BaseExamplesIterable:
    try:
        return examples.shuffle_data_sources(generator)
    except DataSourcesShufflingDisallowed:  # skip() and take() keep the order of the shards
        return examples


def _nothing() -> Iterator[tuple[Any, Row]]:
    return iter(())
