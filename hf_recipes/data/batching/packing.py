"""Several samples in one row, so that a batch is tokens and not padding: which go together, and the rows themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hf_recipes.core.errors import UserError
from hf_recipes.core.labels import IGNORED_LABEL

if TYPE_CHECKING:
    from datasets import Dataset

_ROWS_A_READ = 10_000


@dataclass(frozen=True)
class Bins:
    """Which samples share a row: bin `i` holds the samples ``rows[offsets[i]:offsets[i + 1]]``, longest first.

    Two int64 arrays, so 8 bytes a sample and 8 a bin.
    """

    rows: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """The sample numbers of one bin."""
        return self.rows[self.offsets[index] : self.offsets[index + 1]]


def pack(lengths: np.ndarray | Sequence[int], max_length: int, seed: int) -> Bins:
    """Put whole samples into as few rows of at most `max_length` tokens as best-fit decreasing finds.

    Samples are taken from the longest to the shortest, each into the fullest row that still has room, else into a new
    one. That needs at most 11/9 of the fewest possible rows, and one more (Johnson 1974); with the many short samples
    of a chat set it is within a row or two of tokens / `max_length`. Which samples of equal length go where, and the
    order of the rows, follow from `seed` alone.

    Samples of equal length are placed together, so the work grows with the number of different lengths and free
    spaces, not with the samples: a million in about a second, with 52 bytes a sample at most.

    Args:
        lengths: tokens of each sample, 1 to `max_length`.
        max_length: tokens a row may have.
        seed: of the ties and the order.

    Raises:
        UserError: a sample is empty or longer than `max_length`; names the first.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    _check_lengths(lengths, max_length)
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(lengths))
    samples = shuffled[np.argsort(-lengths[shuffled], kind="stable")]
    bin_of, count = _best_fit(lengths[samples], max_length)
    bin_of = generator.permutation(count)[bin_of]
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(bin_of, minlength=count), out=offsets[1:])
    return Bins(samples[np.argsort(bin_of, kind="stable")], offsets)


def _check_lengths(lengths: np.ndarray, max_length: int) -> None:
    wrong = np.flatnonzero((lengths < 1) | (lengths > max_length))
    if wrong.size:
        raise UserError(
            f"Sample {wrong[0]} has {lengths[wrong[0]]} tokens, but samples are packed whole into rows of 1 to "
            f"{max_length}: drop, shorten or split it when the data is prepared (`overlong`)."
        )


def _best_fit(lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, int]:
    """Bin of every sample and the number of bins; `lengths` must fall."""
    bin_of = np.empty(len(lengths), dtype=np.int64)
    by_space: dict[int, list[np.ndarray]] = defaultdict(list)
    spaces = (
        0  # bit s is set where some bin has s tokens of free space: the best fit is the lowest bit from `length` on
    )
    bins = start = 0
    values, counts = np.unique(lengths, return_counts=True)
    for length, left in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while left:
            fitting = spaces >> length
            space = length + _lowest_bit(fitting) if fitting else max_length
            # After one sample this space is smaller and still the best fit, as long as another sample goes in.
            per_bin = space // length
            wanted = -(-left // per_bin)
            if fitting:
                available = np.concatenate(by_space.pop(space))
                chosen, others = available[:wanted], available[wanted:]
                if others.size:
                    by_space[space].append(others)
                else:
                    spaces &= ~(1 << space)
            else:
                chosen = np.arange(bins, bins + wanted)
                bins += wanted
            placed = min(left, len(chosen) * per_bin)
            bin_of[start : start + placed] = np.repeat(chosen, per_bin)[:placed]
            full, in_last = divmod(placed, per_bin)
            for part, used in ((chosen[:full], per_bin), (chosen[full:], in_last)):
                if part.size:
                    by_space[space - used * length].append(part)
                    spaces |= 1 << (space - used * length)
            start, left = start + placed, left - placed
    return bin_of, bins


def _lowest_bit(number: int) -> int:
    return (number & -number).bit_length() - 1


def sample_lengths(dataset: Dataset) -> np.ndarray:
    """Tokens of every sample as int32, without turning a token into a Python number.

    Taken from the column ``length`` where there is one, else from the offsets of ``input_ids``, some rows at a time.
    """
    if "length" in dataset.column_names:
        return np.asarray(dataset.with_format("numpy")["length"][:], dtype=np.int32)
    tables = dataset.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=_ROWS_A_READ)
    parts = [pc.list_value_length(table.column(0)).to_numpy() for table in tables]
    return np.concatenate(parts or [np.zeros(0)]).astype(np.int32)


def packed_dataset(dataset: Dataset, bins: Bins) -> Dataset:
    """A view of `dataset` whose item `i` is the row made of bin `i`; tokens are read and joined when it is asked for.

    A row has ``input_ids`` and ``labels`` of its samples one after the other, and ``position_ids`` that start again
    at 0 with each sample: from these the attention of `transformers` tells the samples apart, if nobody adds an
    attention mask and no cache is used. The first label of every sample is -100, because the loss shifts labels by
    one and the token before is another sample's last.

    Args:
        dataset: has ``input_ids`` and ``labels``, lists of numbers.
        bins: from `pack`, over the samples of `dataset`.

    Returns:
        A dataset of ``len(bins)`` rows, int64 arrays; its stored column ``samples`` is seen only without a format.
    """
    from datasets import Dataset

    samples = pa.LargeListArray.from_arrays(bins.offsets, bins.rows)
    return Dataset.from_dict({"samples": samples}).with_transform(RowsOfSamples(dataset))


class RowsOfSamples:
    """A `datasets` transform: lists of sample numbers in, packed rows out; see `packed_dataset`.

    Attributes:
        samples: the samples with all their columns; packed rows do not hold ``source`` and ``row_id``.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.samples = dataset
        self._dataset = dataset.select_columns(["input_ids", "labels"]).with_format("arrow")

    def __call__(self, batch: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, list[np.ndarray]]:
        """Build the rows of the bins in ``batch["samples"]``."""
        bins = batch["samples"]
        table = self._dataset[[sample for samples in bins for sample in samples]]
        input_ids, lengths = _flat(table, "input_ids")
        labels, _ = _flat(table, "labels")
        starts = np.cumsum(lengths) - lengths
        labels[starts] = IGNORED_LABEL
        position_ids = np.arange(len(input_ids)) - np.repeat(starts, lengths)
        row_of_sample = np.repeat(np.arange(len(bins)), [len(samples) for samples in bins])
        ends = np.cumsum(np.bincount(row_of_sample, weights=lengths).astype(np.int64))[:-1]
        columns = {"input_ids": input_ids, "labels": labels, "position_ids": position_ids}
        return {name: np.split(values, ends) for name, values in columns.items()}


def _flat(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A list column as one int64 array of its own, and the length of each list."""
    column = table.column(name)
    values = pc.list_flatten(column).to_numpy().astype(np.int64)
    return values, pc.list_value_length(column).to_numpy().astype(np.int64)
