"""What a process must know of the others. Works with and without `torch.distributed`; imports torch only when used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
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


def any_rank(flag: bool) -> bool:
    """Whether `flag` is true on any rank: the way to take a decision alike everywhere."""
    return any(gather(bool(flag)))


def from_main(function: Callable[[], Value]) -> Value:
    """Run `function` on rank 0 alone and return its value everywhere.

    What it raises on purpose (`UserError`, `CheckFailed`), and what the file system answers (`OSError`: full disk, no
    permission), is raised on all ranks, so that none waits for another.
    """
    value: Value | None = None
    failure: UserError | CheckFailed | None = None
    if is_main():
        try:
            value = function()
        except (UserError, CheckFailed) as error:
            failure = error
        except OSError as error:
            failure = CheckFailed(file_problem(error))
    value, failure = broadcast((value, failure))
    if failure is not None:
        raise failure
    return cast(Value, value)
