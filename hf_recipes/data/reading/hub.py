"""Datasets on the Hub, fetched or streamed, as blocks of rows. `datasets` is imported when the first is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.data.reading.blocks import Block, Limits, ParsedBlock, group
from hf_recipes.data.reading.columnar_files import batch_blocks, without_nulls
from hf_recipes.data.reading.source_spec import SourceSpec


def load_hub_dataset(spec: SourceSpec, streaming: bool = False) -> Any:
    """Load a dataset by its Hub name, as `datasets.Dataset` or, streamed, `IterableDataset`.

    Raises:
        UserError: it is absent or gated, the network does not answer, or it has no such configuration or split.
    """
    import datasets

    return _asking_the_hub(datasets.load_dataset, spec, split=spec.split or "train", streaming=streaming)


def hub_identity(spec: SourceSpec) -> str:
    """What the content of a dataset on the Hub is, without fetching it: its configuration, revision and split.

    Raises:
        UserError: as `load_hub_dataset`.
    """
    import datasets

    builder = _asking_the_hub(datasets.load_dataset_builder, spec)
    # `datasets` caches under name/configuration (with a hash of its data files)/version/revision.
    return "/".join(("hub", *Path(builder.cache_dir).parts[-4:], spec.split or "train"))


def _asking_the_hub(load: Callable[..., Any], spec: SourceSpec, **more: Any) -> Any:
    try:
        return load(spec.path, spec.name, data_files=list(spec.data_files) or None, **more)
    except Exception as error:  # the hub, http and dataset libraries raise many kinds
        raise UserError(_problem(spec, error)) from None


def _problem(spec: SourceSpec, error: Exception) -> str:
    """One sentence for what came back instead of a dataset; the libraries tell the kinds apart in their text alone."""
    text = str(error)
    wanted = f"split '{spec.split or 'train'}'" if "plit" in text else f"name '{spec.name}'"
    if found := re.search(r"(?:Should be one of|Available splits:|Available:) \[(.*?)\]", text):
        key = wanted.partition(" ")[0]
        return f"Dataset '{spec.path}' has no {wanted}: set {key} to one of {_unquoted(found[1])}."
    if found := re.search(r"Config name is missing.*?\[(.*?)\]", text, re.DOTALL):
        return f"Dataset '{spec.path}' has several configurations: set name to one of {_unquoted(found[1])}."
    if "corresponds to no data" in text:
        return _no_rows(spec)
    if "gated dataset" in text:
        return f"Dataset '{spec.path}' is gated: ask for access on its page, then log in with 'hf auth login'."
    first = first_line(error)
    if isinstance(error, ConnectionError) or "Couldn't reach" in text:
        return (
            f"'{spec.path}' is no local file, and the Hub, where it may be a dataset, cannot be reached ({first}): "
            "check the network, or give a local path."
        )
    return (
        f"'{spec.path}' is no local file, and as a dataset on the Hub it cannot be read ({first}): "
        "check the name and your access, or give a local path."
    )


def _no_rows(spec: SourceSpec) -> str:
    return f"Dataset '{spec.path}', split '{spec.split or 'train'}', holds no rows."


def _unquoted(names: str) -> str:
    return names.replace("'", "").replace('"', "")


def hub_blocks(spec: SourceSpec, streaming: bool, limits: Limits) -> Iterator[Block]:
    """The rows of a dataset on the Hub: slices of its Arrow data where it was fetched, parsed rows where it streams.

    Raises:
        UserError: as `load_hub_dataset`, or the dataset holds no rows, or the network fails on the way.
    """
    dataset = load_hub_dataset(spec, streaming)
    empty = True
    for block in _streamed(spec, dataset, limits) if streaming else _sliced(spec.path, dataset, limits):
        empty = False
        yield block
    if empty:
        raise UserError(_no_rows(spec))


def _streamed(spec: SourceSpec, dataset: Any, limits: Limits) -> Iterator[Block]:
    rows = _rows_of_stream(spec, dataset)
    for numbers, values in group(((number, 0, row) for number, row in enumerate(rows)), limits):
        yield ParsedBlock(spec.path, numbers, values)


def _rows_of_stream(spec: SourceSpec, dataset: Any) -> Iterator[dict[str, Any]]:
    """Rows as they come over the network; `Limits.bytes` cannot hold here, for their raw size is not known."""
    rows, number = iter(dataset), 0
    while True:
        try:
            row = next(rows, None)
        except Exception as error:  # as when loading
            raise UserError(
                f"Dataset '{spec.path}' cannot be read on after row {number} ({first_line(error)}): try again, or "
                "leave streaming off to fetch it first."
            ) from None
        if row is None:
            return
        yield {name: without_nulls(value) for name, value in row.items()}
        number += 1


def _sliced(path: str, dataset: Any, limits: Limits) -> Iterator[Block]:
    arrow = dataset.with_format("arrow")
    for start in range(0, len(dataset), limits.rows):
        table = arrow[start : start + limits.rows].combine_chunks()
        yield from batch_blocks(path, table.to_batches(), limits, start)
