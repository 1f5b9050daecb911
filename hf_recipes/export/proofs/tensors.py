"""Proof by tensors: the written files are read again and every value is held against base and adapter."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import torch

from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.tensor_io import OpenFiles, read_into
from hf_recipes.core.tensors import FLOATS, DamagedFile, TensorEntry, read_header, torch_dtype
from hf_recipes.export.output import Output
from hf_recipes.export.plan import MergePlan
from hf_recipes.export.progress import Progress
from hf_recipes.export.proofs.allowed import row_error, share_of_allowed, whole_error
from hf_recipes.export.proofs.kept_update import KeptUpdate
from hf_recipes.export.rows import RowEdit, Scratch, is_row_wise, row_blocks, row_count
from hf_recipes.export.soundness import is_finite
from hf_recipes.export.stream import one_thread_each, thread_count

_CHUNK_BYTES = 1 << 20
_TASK_ELEMENTS = 8 << 20
_ELEMENTS_FOR_KEPT = 1 << 15  # of each part: a share over all tensors needs no more, and more would cost time


@dataclass(frozen=True)
class _Part:
    """Rows `first` to `last` of a tensor; for copies and whole tensors all of it."""

    output: Output
    entry: TensorEntry
    first: int
    last: int


def prove_tensors(
    plan: MergePlan, directory: Path, *, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Check the merged files in `directory` against the plan.

    Copied tensors must have the base's bytes, converted ones its rounded values. Merged ones are computed anew by
    another route (one fused product and sum), and must equal that to the bit or lie within one rounding of ``W + ΔW``:
    half a unit in the last place of the target dtype, plus the error of fp32 sums.

    Returns:
        Counts, the seconds taken, ``largest_error``: the largest deviation as a share of what is allowed, 0 when all
        values came out the same by both routes, and ``update_kept``: see `KeptUpdate`, measured on a part of the rows;
        None where nothing was added row by row.

    Raises:
        CheckFailed: what is wrong, with the tensor's name.
    """
    started = time.perf_counter()
    written = _read_headers(plan, directory)
    parts = [part for output in plan.outputs for part in _parts(output, written[output.spec.name])]
    done = (progress or Progress.silent()).add
    with OpenFiles() as files, one_thread_each(), ThreadPoolExecutor(thread_count(threads)) as pool:
        prover = _Prover(files, done)
        groups = {id(output.group): output.group for output in plan.outputs if output.group}
        errors = list(pool.map(prover.error, parts))
        errors += [prover.group_error(group, plan, written) for group in groups.values()]
    return {
        "tensors": len(plan.outputs),
        "copied": sum(output.is_copy for output in plan.outputs),
        "recomputed": sum(bool(output.edit or output.group) for output in plan.outputs),
        "largest_error": max(errors, default=0.0),
        "update_kept": prover.kept.share,
        "seconds": time.perf_counter() - started,
    }


def _read_headers(plan: MergePlan, directory: Path) -> dict[str, TensorEntry]:
    """The headers as any reader sees them, held against the plan."""
    written: dict[str, TensorEntry] = {}
    for shard in plan.shards():
        try:
            written |= read_header(directory / shard)[0]
        except (DamagedFile, OSError) as error:
            raise CheckFailed(f"the merged file cannot be read again: {error}") from None
    expected = {output.spec.name for output in plan.outputs}
    if set(written) != expected:
        raise CheckFailed(f"the merged files hold other tensors than planned: {sorted(set(written) ^ expected)[:4]}")
    for output in plan.outputs:
        entry = written[output.spec.name]
        if (entry.dtype, entry.shape) != (output.spec.dtype, output.spec.shape):
            raise CheckFailed(f"'{entry.name}' was written as {entry.dtype}{list(entry.shape)}")
    return written


def _parts(output: Output, entry: TensorEntry) -> list[_Part]:
    if output.group:
        return []
    rows, columns = row_count(output)
    if output.is_copy or not is_row_wise(output):
        return [_Part(output, entry, 0, rows)]
    return [_Part(output, entry, block.start, block.stop) for block in row_blocks(0, rows, columns, _TASK_ELEMENTS)]


class _Prover:
    """Finds the error of one part at a time; one `Scratch` a thread. `kept` is what rounding left of the update."""

    def __init__(self, files: OpenFiles, done: Callable[[int], None]) -> None:
        self._files, self._done = files, done
        self.kept = KeptUpdate()
        self._own = local()

    @property
    def _scratch(self) -> Scratch:
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch()
        return self._own.scratch

    def error(self, part: _Part) -> float:
        """The largest error of a part as a share of what is allowed; raises `CheckFailed` above 1."""
        if part.output.is_copy:
            self._compare_copy(part)
            return 0.0
        if is_row_wise(part.output):
            worst = self._error_of_rows(part)
        else:
            value = part.entry.load()
            _check_finite(part.entry.name, value)
            worst = whole_error(part.output, value)
            self._done(part.entry.nbytes)
        return _judged(part.entry.name, worst)

    def group_error(self, group: Any, plan: MergePlan, written: dict[str, TensorEntry]) -> float:
        """As `error`, for tensors that are one parameter in memory."""
        worst = 0.0
        expected = group.expected()
        for name in group.names:
            value, (wanted, room) = written[name].load(), expected.pop(name)
            _check_finite(name, value)
            worst = max(worst, _judged(name, share_of_allowed(value, wanted, room)))
            self._done(written[name].nbytes)
        return worst

    def _read(self, entry: TensorEntry, rows: slice, shape: tuple[int, int], name: str) -> torch.Tensor:
        block, view = self._scratch.host(name, shape, entry.dtype)
        read_into(self._files[entry.file], entry.start + rows.start * (len(view) // shape[0]), view)
        return block

    def _compare_copy(self, part: _Part) -> None:
        source, entry = part.output.source, part.entry
        assert isinstance(source, TensorEntry), source.name
        for start in range(0, entry.nbytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, entry.nbytes - start)
            one, view = self._scratch.raw("base", size)
            read_into(self._files[source.file], source.start + start, view)
            other, view = self._scratch.raw("written", size)
            read_into(self._files[entry.file], entry.start + start, view)
            if not same_bytes(one, other):
                raise CheckFailed(f"'{entry.name}' should be the base's, but its bytes differ")
            if entry.dtype in FLOATS:
                _check_finite(entry.name, other.view(torch_dtype(entry.dtype)))
            self._done(size)

    def _error_of_rows(self, part: _Part) -> float:
        output, worst = part.output, 0.0
        edit = RowEdit(output)
        start = output.start
        assert isinstance(start, TensorEntry), start.name
        _, columns = row_count(output)
        for rows in row_blocks(part.first, part.last, columns):
            shape = (rows.stop - rows.start, columns)
            value = self._read(part.entry, rows, shape, "written")
            base = self._read(start, rows, shape, "base")
            wide = self._scratch.fp32("block", shape)
            wide.copy_(base)
            expected = edit.apply(wide, rows, self._scratch.fp32("product", shape), fused=True)
            rounded, _ = self._scratch.host("rounded", shape, part.entry.dtype)
            rounded.copy_(expected)
            _check_finite(part.entry.name, value)
            if rows.start == part.first:
                some = slice(0, max(1, _ELEMENTS_FOR_KEPT // columns))
                self.kept.add(base[some], expected[some], value[some])
            if not same_bytes(rounded, value):
                worst = max(worst, row_error(edit, base, rows, value))
            self._done(value.nbytes)
        return worst


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors of one size have the same bytes: several times faster than `torch.equal`."""
    a, b = (tensor.reshape(-1).view(torch.uint8).numpy() for tensor in (one, other))
    wide = a.size // 8 * 8
    return np.array_equal(a[:wide].view(np.uint64), b[:wide].view(np.uint64)) and np.array_equal(a[wide:], b[wide:])


def _judged(name: str, worst: float) -> float:
    if not worst <= 1.0:
        raise CheckFailed(f"'{name}' deviates from base plus update by {worst:.3g} times what rounding allows")
    return worst


def _check_finite(name: str, value: torch.Tensor) -> None:
    if not is_finite(value):
        raise CheckFailed(f"'{name}' holds NaN or Inf in the merged model")
