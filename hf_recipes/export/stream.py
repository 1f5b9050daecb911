"""The merge itself: ranges copied, blocks of rows and whole tensors computed, on a few threads, straight into files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock, local

import torch

from hf_recipes.core.cores import usable_cores
from hf_recipes.core.errors import UserError
from hf_recipes.core.tensor_io import OpenFiles, copy_range, read_into, write_from
from hf_recipes.core.tensors import TensorEntry, tensor_bytes, torch_dtype
from hf_recipes.export.bases.read import BaseTensor
from hf_recipes.export.output import Output
from hf_recipes.export.plan import MergePlan
from hf_recipes.export.progress import Progress
from hf_recipes.export.rows import RowEdit, Scratch, row_blocks, row_count
from hf_recipes.export.shards import Placed, place_tensors, write_headers
from hf_recipes.export.soundness import is_finite
from hf_recipes.export.tasks import Copy, Rows, Task, tasks_of
from hf_recipes.export.values import merged_value

MAX_THREADS = 8


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Torch computes on one thread in each of ours meanwhile: threads that wait for each other's parts would spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_count(threads: int | None) -> int:
    """The threads to use: those asked for, else one a core this process may run on, `MAX_THREADS` at most."""
    return threads or min(MAX_THREADS, usable_cores())


def write_tensors(
    plan: MergePlan,
    directory: Path,
    *,
    threads: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[str]:
    """Write every tensor of the plan into `directory`; returns the names of those that changed.

    Args:
        plan: what to write; its outputs name their files.
        directory: empty.
        threads: default: one a core, `MAX_THREADS` at most.
        device: ``cuda`` makes products and sums on a GPU.
        progress: is told of every byte written.

    Raises:
        UserError: a value does not fit into the target dtype (fp16 ends at 65,504); the tensor is named.
        OSError: the disk is full, or a file cannot be read or written.
    """
    placed = place_tensors(plan, directory)
    write_headers(placed, directory)
    changed: set[str] = set()
    with OpenFiles() as sources, OpenFiles(os.O_WRONLY) as targets, one_thread_each():
        writer = _Writer(placed, sources, targets, device, progress or Progress.silent())
        with ThreadPoolExecutor(thread_count(threads)) as pool:
            waiting = [pool.submit(writer.do, task) for task in tasks_of(plan, placed)]
            try:
                for future in as_completed(waiting):
                    changed |= future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [output.spec.name for output in plan.outputs if output.spec.name in changed]


class _Writer:
    """Does the tasks of one merge; one `Scratch` a thread."""

    def __init__(
        self, placed: dict[str, Placed], sources: OpenFiles, targets: OpenFiles, device: str, progress: Progress
    ) -> None:
        self._placed, self._sources, self._targets = placed, sources, targets
        self._device, self._progress = device, progress
        self._own = local()
        self._one_group = Lock()

    def do(self, task: Task) -> set[str]:
        """Do a task; returns the names of the tensors it changed."""
        if isinstance(task, Copy):
            self._copy(task)
            return set()
        return self._rows(task) if isinstance(task, Rows) else self._whole(task.outputs)

    def _copy(self, task: Copy) -> None:
        source, target = self._sources[task.source], self._targets[task.target]
        copy_range(source, task.source_start, target, task.target_start, task.nbytes)
        self._progress.add(task.nbytes)

    @property
    def _scratch(self) -> Scratch:
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch(self._device)
        return self._own.scratch

    def _rows(self, task: Rows) -> set[str]:
        output, scratch = task.output, self._scratch
        edit = RowEdit(output, self._device)
        _, columns = row_count(output)
        changed = output.is_new or output.source.shape != output.spec.shape
        for rows in row_blocks(task.first, task.last, columns):
            shape = (rows.stop - rows.start, columns)
            start = self._read(output.start, rows, shape, "start")
            wide = scratch.fp32("block", shape)
            wide.copy_(start)
            merged = edit.apply(wide, rows, scratch.fp32("product", shape))
            written, view = scratch.host("written", shape, output.spec.dtype)
            written.copy_(merged)
            _check_finite(output, start, merged, written)
            self._write(output, view, rows.start * (len(view) // shape[0]))
            if not changed and output.edit is not None:
                before = start if output.start is output.source else self._read(output.source, rows, shape, "source")
                changed = not torch.equal(before.to(written.dtype), written)
        return {output.spec.name} if changed else set()

    def _read(self, source: BaseTensor, rows: slice, shape: tuple[int, int], name: str) -> torch.Tensor:
        if not isinstance(source, TensorEntry):  # a trained value in place of a packed one
            return source.load().reshape(-1, shape[1])[rows]
        block, view = self._scratch.host(name, shape, source.dtype)
        read_into(self._sources[source.file], source.start + rows.start * (len(view) // shape[0]), view)
        return block

    def _write(self, output: Output, view: memoryview, offset: int = 0) -> None:
        place = self._placed[output.spec.name]
        write_from(self._targets[place.file], place.start + offset, view)
        self._progress.add(len(view))

    def _whole(self, outputs: Sequence[Output]) -> set[str]:
        dtype = torch_dtype(outputs[0].spec.dtype)
        group = outputs[0].group
        with self._one_group if group else nullcontext():  # all experts of one layer in memory, not of several
            values = group.compute(dtype) if group else {}
        changed = set()
        for output in outputs:
            before = output.source.load()
            value = (
                values.pop(output.spec.name) if group else merged_value(output, before, torch_dtype(output.spec.dtype))
            )
            _check_finite(output, before, value, value)
            self._write(output, tensor_bytes(value))
            is_edited = output.edit is not None or group is not None
            if is_edited and (before.shape != value.shape or not torch.equal(before.to(value.dtype), value)):
                changed.add(output.spec.name)
        return changed


def _check_finite(output: Output, before: torch.Tensor, merged: torch.Tensor, written: torch.Tensor) -> None:
    """Refuse NaN and Inf. What is finite in fp32 is so in bf16, but for fp32's last values; fp16 ends far sooner."""
    if written.dtype != torch.float16 and merged.dtype == torch.float32 and is_finite(merged):
        return
    if not is_finite(written):
        name = str(written.dtype).removeprefix("torch.")
        wider = "choose bf16 or fp32" if written.dtype == torch.float16 else "check how the adapter was trained"
        why = f"its values do not fit into {name}; {wider}"
        why = why if is_finite(before) else "the base holds NaN or Inf there; take another base"
        raise UserError(f"'{output.spec.name}' cannot be merged: {why}.")
