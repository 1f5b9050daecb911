"""A bad micro-batch on disk: JSON to read (which rows, what text), and the exact tensors to replay it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from hf_recipes.callbacks.find_rows import DatasetRow, Piece, find_rows, piece_of
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import json_safe, staged_beside, write_text

DIRECTORY = "bad_batches"
_SEARCH_SECONDS = 60.0  # the other ranks wait meanwhile


def save_bad_batch(
    output_dir: Path, facts: Mapping[str, Any], inputs: Mapping[str, Any], dataset: Any, processing_class: Any
) -> str:
    """Write one micro-batch as ``bad_batches/step-N-rankR-microM.json`` and, beside it, ``.safetensors``.

    The JSON has the facts, and for every sample of the batch its tokens, labels and text, what of it is trained, and
    the rows of the data set that it equals.

    Args:
        facts: ``step``, ``rank`` and ``micro_batch`` (from 1), and what else is to be written.
        inputs: what the model's forward was given; only its tensors are kept.
        dataset: what the batch was drawn from.
        processing_class: a tokenizer, or anything else (then there is no text).

    Returns:
        The JSON's path, relative to `output_dir`.

    Raises:
        OSError: it could not be written.
    """
    name = f"{DIRECTORY}/step-{facts['step']}-rank{facts['rank']}-micro{facts['micro_batch']}"
    tensors = {key: value.detach().cpu().clone() for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    file = output_dir / f"{name}.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    _write_bytes(file, save({key: value.contiguous() for key, value in tensors.items()}))
    rows, unknown = _describe(tensors, dataset, getattr(processing_class, "decode", None))
    shapes = {key: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" for key, value in tensors.items()}
    description = {
        **facts,
        "tensors": shapes,
        "not_saved": sorted(inputs.keys() - tensors.keys()),
        "dataset_rows_unknown": unknown,
        "rows": rows,
    }
    write_text(output_dir / f"{name}.json", _readable(description))
    return f"{name}.json"


def load_bad_batch(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of a bad micro-batch, on the CPU: ``model(**load_bad_batch(path))`` replays it.

    Args:
        path: a file under ``bad_batches/``, the ``.json`` or the ``.safetensors``.

    Raises:
        UserError: there is no such batch.
    """
    file = Path(path).with_suffix(".safetensors")
    if not file.is_file():
        raise UserError(f"'{file}' is not there: give a file of a run's {DIRECTORY}/, .json or .safetensors.")
    return load_file(file)


def _readable(value: Any) -> str:
    """Strict JSON, indented, with lists of numbers on one line. (A raw line break never stands inside a string.)"""
    text = json.dumps(json_safe(value), indent=2, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\n\s+-?\d+(?:,\n\s+-?\d+)*\n\s+\]", _on_one_line, text) + "\n"


def _on_one_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[0][1:-1].split())}]"


def _write_bytes(file: Path, data: bytes) -> None:
    staged = staged_beside(file)
    try:
        staged.write_bytes(data)
        staged.replace(file)
    finally:
        staged.unlink(missing_ok=True)


def _describe(
    tensors: Mapping[str, torch.Tensor], dataset: Any, decode: Any
) -> tuple[list[dict[str, Any]], str | None]:
    """The samples of a batch, and why it is not known (None: it is) which rows of the data set they are."""
    ids = tensors.get("input_ids")
    if ids is None or ids.ndim != 2 or ids.is_floating_point():
        return [], "the batch has no input_ids of shape (rows, length)"
    places = list(_places(tensors))
    try:
        found, unknown = find_rows(dataset, [piece for *_, piece in places], _SEARCH_SECONDS)
    except Exception as error:  # the data set is the user's, and whatever it does must not hide the alarm
        found, unknown = [[] for _ in places], f"reading the data set failed ({type(error).__name__}: {error})"
    whole = {row for (row, is_whole, _, _), equal in zip(places, found, strict=True) if is_whole and equal}
    segmented = {row for row, is_whole, _, _ in places if not is_whole} - whole
    samples = [
        _sample(row, start, piece, equal, decode)
        for (row, is_whole, start, piece), equal in zip(places, found, strict=True)
        if is_whole == (row not in segmented)
    ]
    if unknown is None and not all(sample["dataset_rows"] for sample in samples):
        unknown = "no row of the data set has the tokens of some of these samples"
    return samples, unknown


def _places(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[int, bool, int, Piece]]:
    """Every row of the batch as (row, True, 0, piece); if it holds several samples, each of them as (row, False, start,
    piece) too."""
    ids, labels, mask, positions = (_matrix(tensors, name) for name in _MATRICES)
    assert ids is not None
    for row in range(len(ids)):
        real = np.ones(ids.shape[1], dtype=bool) if mask is None else mask[row] != 0
        row_labels = None if labels is None else labels[row][real]
        whole = piece_of(ids[row][real], row_labels, padded=mask is None)
        yield row, True, 0, whole
        row_positions = np.arange(len(whole.input_ids)) if positions is None else positions[row][real]
        starts = np.flatnonzero(row_positions[: whole.shortest] == 0).tolist()
        if len(starts) < 2:
            continue
        for start, end in zip(starts, [*starts[1:], len(whole.input_ids)], strict=True):
            part = slice(start, end)
            part_labels = None if row_labels is None else row_labels[part]
            padded = mask is None and start == starts[-1]
            yield row, False, start, piece_of(whole.input_ids[part], part_labels, padded=padded)


_MATRICES = ("input_ids", "labels", "attention_mask", "position_ids")


def _matrix(tensors: Mapping[str, torch.Tensor], name: str) -> np.ndarray | None:
    """A tensor of the shape of ``input_ids`` as an array; None if it has another, or is not there."""
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != tensors["input_ids"].shape or tensor.is_floating_point():
        return None
    return tensor.long().numpy()


def _sample(row: int, start: int, piece: Piece, equal: list[DatasetRow], decode: Any) -> dict[str, Any]:
    tokens = equal[0].tokens if equal else piece.shortest
    ids = piece.input_ids[:tokens].tolist()
    labels = None if piece.labels is None else piece.labels[:tokens].tolist()
    return {
        "row": row,
        "start": start,
        "tokens": tokens,
        "dataset_rows": [{"index": each.index, "source": each.source, "row_id": each.row_id} for each in equal],
        "text": _text(decode, ids),
        "supervised_text": None if labels is None else _text(decode, [label for label in labels if label >= 0]),
        "input_ids": ids,
        "labels": labels,
    }


def _text(decode: Any, ids: list[int]) -> str | None:
    if decode is None:
        return None
    try:
        return str(decode(ids))
    except Exception as error:  # ids that the tokenizer does not know may be what is wrong with the batch
        return f"(not decoded: {type(error).__name__}: {error})"
