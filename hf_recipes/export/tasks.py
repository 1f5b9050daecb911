"""The pieces of work of a merge, each done by one thread: ranges to copy, rows to compute, whole tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hf_recipes.core.tensors import TensorEntry
from hf_recipes.export.output import Output
from hf_recipes.export.plan import MergePlan
from hf_recipes.export.rows import is_row_wise, row_blocks, row_count
from hf_recipes.export.shards import Placed

_COPY_BYTES = 64 << 20
_TASK_ELEMENTS = 8 << 20


@dataclass(frozen=True)
class Copy:
    """A range of bytes that lies in one piece in the base and in the output."""

    source: Path
    source_start: int
    target: Path
    target_start: int
    nbytes: int


@dataclass(frozen=True)
class Rows:
    """Rows `first` to `last` of an output."""

    output: Output
    first: int
    last: int


@dataclass(frozen=True)
class Whole:
    """Outputs to be computed at once: one, or a converted group."""

    outputs: tuple[Output, ...]


Task = Copy | Rows | Whole


def tasks_of(plan: MergePlan, placed: dict[str, Placed]) -> list[Task]:
    """What is to be done for a plan, in the order of the files, so that disks read and write forward."""
    tasks: list[Task] = []
    groups: dict[int, list[Output]] = {}
    for name in sorted(placed, key=lambda name: (placed[name].file, placed[name].start)):
        output = placed[name].output
        if output.is_copy:
            tasks += _extended(tasks, _copy_of(placed[name]))
        elif is_row_wise(output):
            tasks += _row_tasks(output)
        elif output.group is not None:
            groups.setdefault(id(output.group), []).append(output)
        else:
            tasks.append(Whole((output,)))
    return [*tasks, *(Whole(tuple(outputs)) for outputs in groups.values())]


def _copy_of(placed: Placed) -> Copy:
    source = placed.output.source
    assert isinstance(source, TensorEntry), source.name
    return Copy(source.file, source.start, placed.file, placed.start, source.nbytes)


def _extended(tasks: list[Task], copy: Copy) -> list[Copy]:
    """`copy`, joined to the last task where it goes on from it, in pieces of at most `_COPY_BYTES`."""
    last = tasks[-1] if tasks else None
    if isinstance(last, Copy) and last.nbytes < _COPY_BYTES:
        joins = (last.source, last.source_start + last.nbytes) == (copy.source, copy.source_start)
        if joins and (last.target, last.target_start + last.nbytes) == (copy.target, copy.target_start):
            tasks.pop()
            copy = Copy(last.source, last.source_start, last.target, last.target_start, last.nbytes + copy.nbytes)
    starts = range(0, copy.nbytes, _COPY_BYTES)
    return [
        Copy(
            copy.source,
            copy.source_start + start,
            copy.target,
            copy.target_start + start,
            min(_COPY_BYTES, copy.nbytes - start),
        )
        for start in starts
    ]


def _row_tasks(output: Output) -> list[Rows]:
    rows, columns = row_count(output)
    blocks = row_blocks(0, rows, columns, _TASK_ELEMENTS)
    return [Rows(output, block.start, block.stop) for block in blocks]
