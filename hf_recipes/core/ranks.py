"""What a process must know of the others. Works with and without `torch.distributed`; imports torch only when used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

from hf_recipes.core.errors import CheckFailed, UserError, file_problem

Value = TypeVar("Value")


def _distributed() -> Any | None:
    """`torch.distributed` when a process group is up, else None; never imports torch by itself."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed


def rank() -> int:
    """This process's rank; before the process group exists, what the launcher put into the environment."""
    group = _distributed()
    return group.get_rank() if group else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Number of processes in the group (1 without one)."""
    group = _distributed()
    return group.get_world_size() if group else 1


def is_main() -> bool:
    """Whether this is rank 0, the one that writes and speaks."""
    return rank() == 0


def barrier() -> None:
    """Wait for all ranks."""
    if group := _distributed():
        group.barrier()


def broadcast(value: Value) -> Value:
    """Return rank 0's `value` (any picklable object) on every rank."""
    group = _distributed()
    if not group:
        return value
    box = [value]
    group.broadcast_object_list(box, src=0)
    return box[0]


def gather(value: Value) -> list[Value]:
    """Return every rank's `value` in rank order, on every rank."""
    group = _distributed()
    if not group:
        return [value]
    values: list[Any] = [None] * group.get_world_size()
    group.all_gather_object(values, value)
    return values


def from_main(function: Callable[[], Value]) -> Value:
    """Run `function` on rank 0 alone and return its value everywhere.

    What it raises on purpose (`UserError`, `CheckFailed`), and what the file system answers (`OSError`: full disk, no
    permission), is raised on all ranks, so that none waits for another.
    """
    value, failure = _attempt(function) if is_main() else (None, None)
    value, failure = broadcast((value, failure))
    if failure is not None:
        raise failure
    return cast(Value, value)


def first_on_each_machine(function: Callable[[], Value], patience: timedelta = timedelta(days=2)) -> Value:
    """Run `function` on the first rank of each machine, then, when all of those are through, on the other ranks.

    For long work that leaves its result on disk, where the other ranks find it. They wait in a gloo group of its own,
    whose time-out is `patience`, not in a collective of the training's backend, which gives up after minutes.

    Raises:
        UserError, CheckFailed: what the first rank that failed raised, on all ranks alike.
    """
    group = _distributed()
    if not group:
        return function()
    is_first = int(os.environ.get("LOCAL_RANK", group.get_rank())) == 0
    waiting = group.new_group(backend="gloo", timeout=patience)
    try:
        value, failure = _attempt(function) if is_first else (None, None)
        failures: list[Any] = [None] * group.get_world_size()
        group.all_gather_object(failures, failure, group=waiting)
        if met := next((failure for failure in failures if failure is not None), None):
            raise met
        return cast(Value, value) if is_first else function()
    finally:
        group.destroy_process_group(waiting)


def _attempt(function: Callable[[], Value]) -> tuple[Value | None, UserError | CheckFailed | None]:
    try:
        return function(), None
    except (UserError, CheckFailed) as error:
        return None, error
    except OSError as error:
        return None, CheckFailed(file_problem(error))
