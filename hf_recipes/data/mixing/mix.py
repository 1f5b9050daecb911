"""Mix datasets of your own by an exact share of general rows; see `mix_datasets`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.log import logger
from hf_recipes.data.mixing.mixed_columns import SOURCE, check_features
from hf_recipes.data.mixing.mixture import check_max_repeats, check_share, choose_mixture, shuffled, tell_short
from hf_recipes.data.mixing.sample_sizes import row_size, sample_sizes

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

GENERAL = "general"
BUFFER_ROWS = 1000


@dataclass(frozen=True)
class _Part:
    name: str
    dataset: Any
    is_general: bool
    weight: float | None  # as given

    @property
    def is_stream(self) -> bool:
        from datasets import IterableDataset

        return isinstance(self.dataset, IterableDataset)


def mix_datasets(
    datasets: Mapping[str, Any],
    *,
    general_share: float = 0.15,
    unit: str = "rows",
    seed: int = 42,
    weights: Mapping[str, float] | None = None,
    max_repeats: int = 1,
    buffer_size: int = BUFFER_ROWS,
) -> Dataset | IterableDataset:
    """Mix general rows into domain rows by an exact share of the whole, and shuffle.

    ``mix_datasets({"orders": a, "general": b}, general_share=0.15, unit="tokens", seed=1)`` uses all of ``a`` once and
    so much of ``b`` that it makes up 15 % of all tokens.

    Args:
        datasets: names → `Dataset` or `IterableDataset`, all with the same columns. ``general`` is the general part:
            a dataset, or names → datasets for several. All others are domain.
        general_share: general part of the result, from 0 to below 1.
        unit: what the share counts: ``rows``, ``tokens`` (of the column ``input_ids``) or ``supervised_tokens``
            (entries of ``labels`` that are not -100).
        seed: decides the rows and their order.
        weights: names of general datasets → how the general part is shared out among them (1 by default). What one is
            too small for, the others take over. In a stream also names of domain datasets → how fast each is read; by
            default as fast as they have rows where all are `Dataset`, else equally fast.
        max_repeats: how often a general row may be used where there are too few; then all are, evenly.
        buffer_size: in a stream, rows of a dataset that are shuffled among each other.

    Returns:
        A `Dataset`, shuffled, whose general part is exact to one row, or to half a sample by tokens. With an
        `IterableDataset` among `datasets`, an `IterableDataset` every beginning of which has the share to half a
        sample, and which ends with the domain; ``set_epoch`` gives it another order. Either has the column ``source``
        with the dataset's name; where a dataset has that column already, it is kept.

    Raises:
        UserError: a setting is out of range, a dataset is of another kind, or columns differ.
    """
    check_share(general_share, unit, unit_name="unit")
    check_max_repeats(max_repeats)
    parts = _parts(datasets, weights or {})
    general, domain = [part for part in parts if part.is_general], [part for part in parts if not part.is_general]
    if not domain:
        raise UserError("mix_datasets was given no domain dataset: add one under any name but 'general'.")
    if general_share and not general:
        logger.info("No dataset is called 'general', so general_share %g is ignored.", general_share)
    if not any(part.is_stream for part in parts):
        return _mixed_dataset(domain, general, general_share, unit, seed, max_repeats)
    return _mixed_stream(domain, general, general_share, unit, seed, max_repeats, buffer_size)


def _parts(datasets: Mapping[str, Any], weights: Mapping[str, float]) -> list[_Part]:
    """The datasets with their names, roles and weights; several general ones have their own names."""
    from datasets import DatasetDict, IterableDatasetDict

    general = datasets.get(GENERAL, {})
    # A dictionary of splits is no such mapping; `_checked` refuses it.
    if not isinstance(general, Mapping) or isinstance(general, (DatasetDict, IterableDatasetDict)):
        general = {GENERAL: general}
    named = [(name, dataset, False) for name, dataset in datasets.items() if name != GENERAL]
    named += [(name, dataset, True) for name, dataset in general.items()]
    names = [name for name, _, _ in named]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Two datasets are called '{name}': give each its own name.")
    for name, weight in weights.items():
        if name not in names:
            raise UserError(f"weights names '{name}'{nearest(name, names)}; the datasets are {', '.join(names)}.")
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
            raise UserError(f"weights['{name}'] must be a number above 0, not {weight!r}.")
    parts = [_Part(name, _checked(name, dataset), role, weights.get(name)) for name, dataset, role in named]
    for part in parts:
        if part.weight is not None and not part.is_general and not any(other.is_stream for other in parts):
            raise UserError(f"weights['{part.name}']: all of a domain dataset is used; weights share out general rows.")
    return parts


def _checked(name: str, dataset: Any) -> Any:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

    if isinstance(dataset, (DatasetDict, IterableDatasetDict)):
        raise UserError(f"'{name}' is a dictionary of the splits {', '.join(dataset)}: give one of them.")
    if not isinstance(dataset, (Dataset, IterableDataset)):
        raise UserError(f"'{name}' must be a Dataset or an IterableDataset, not {type(dataset).__name__}.")
    return dataset


def _mixed_dataset(
    domain: list[_Part], general: list[_Part], share: float, unit: str, seed: int, max_repeats: int
) -> Dataset:
    from datasets import concatenate_datasets

    parts = [*domain, *general]
    with_source = [_with_source(part) for part in parts]
    check_features([part.name for part in parts], [dataset.features for dataset in with_source])
    domain_rows = sum(len(part.dataset) for part in domain)
    if not domain_rows:
        raise UserError("The domain datasets hold no rows: give at least one row to learn from.")
    mixture = choose_mixture(
        float(sum(sample_sizes(part.dataset, unit).sum() for part in domain)),
        [sample_sizes(part.dataset, unit) for part in general],
        share,
        seed,
        [part.weight or 1.0 for part in general],
        max_repeats,
    )
    if general:
        tell_short(mixture, unit)
    starts = domain_rows + np.cumsum([0, *(len(part.dataset) for part in general)])
    chosen = [start + rows for start, rows in zip(starts, mixture.chosen, strict=False)]
    rows = np.concatenate([np.arange(domain_rows), *chosen])
    return concatenate_datasets(with_source).select(rows[shuffled(len(rows), seed)])


def _with_source(part: _Part) -> Any:
    import pyarrow as pa

    dataset = part.dataset
    if SOURCE in dataset.column_names:
        return dataset
    return dataset.add_column(SOURCE, pa.repeat(pa.scalar(part.name), len(dataset)))


def _mixed_stream(
    domain: list[_Part], general: list[_Part], share: float, unit: str, seed: int, max_repeats: int, buffer_size: int
) -> IterableDataset:
    from hf_recipes.data.mixing.mixed_examples import Blend
    from hf_recipes.data.mixing.mixed_stream import mixed_stream

    if isinstance(buffer_size, bool) or not isinstance(buffer_size, int) or buffer_size < 1:
        raise UserError(f"buffer_size is a number of rows, 1 (no shuffling) or more, not {buffer_size}.")
    parts = [*domain, *general]
    blend = Blend(
        names=[part.name for part in parts],
        general=[part.is_general for part in parts],
        weights=[*_paces(domain, unit), *(part.weight or 1.0 for part in general)],
        share=share if general else 0.0,
        unit=unit,
        size_of=row_size(unit),
        seed=seed,
        max_repeats=max_repeats,
        buffer_size=buffer_size,
    )
    return mixed_stream([_as_stream(part, seed) for part in parts], blend)


def _paces(domain: list[_Part], unit: str) -> list[float]:
    """How fast each domain dataset is read: those that are no streams by their size, so that they end together."""
    if any(part.is_stream for part in domain):
        return [part.weight or 1.0 for part in domain]
    return [part.weight or max(1.0, float(sample_sizes(part.dataset, unit).sum())) for part in domain]


def _as_stream(part: _Part, seed: int) -> Any:
    """A `Dataset` is shuffled as a whole once; the windows of the stream then give every epoch another order."""
    from hf_recipes.data.mixing.mixed_stream import own_copy

    if part.is_stream:
        return own_copy(part.dataset)
    return part.dataset.select(shuffled(len(part.dataset), f"{seed}:{part.name}")).to_iterable_dataset()
