"""`StepVote`: what one rank wants, all ranks hear at the same step, without touching the device."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

from hf_recipes.core.ranks import world_size

_PATIENCE = timedelta(days=2)  # the work that the others wait for at the end may be hours of hashing


class StepVote:
    """Flags that any rank raises for itself and all ranks count together, once a step: a decision taken on one rank
    alone would leave the others waiting in a collective.

    The count is an all-reduce of one integer in a gloo group of its own, between hosts: devices are neither used nor
    waited for. In a run of one process nothing is sent.
    """

    def __init__(self) -> None:
        self._world = weakref.ref(_world_group()) if world_size() > 1 else None
        self._group: Any = None
        if world_size() > 1:
            import torch.distributed as distributed

            # Weakly: torch keeps it until the groups are destroyed, and one that outlives them aborts the exit.
            self._group = weakref.ref(distributed.new_group(backend="gloo", timeout=_PATIENCE))
        self._forget()

    def _forget(self) -> None:
        self._mine: dict[str, str] = {}
        self._heard: dict[str, str] = {}
        self._step: int | None = None

    @classmethod
    def open(cls) -> StepVote:
        """The vote of this process group, the same for all callbacks; call it in `on_train_begin`, on every rank."""
        global _opened
        if _opened is None or not _opened._of_this_group():
            _opened = cls()
        _opened._forget()
        return _opened

    def _of_this_group(self) -> bool:
        return (self._world and self._world()) is _world_group()

    def raise_flag(self, name: str, reason: str) -> None:
        """Raise a flag on this rank; all ranks hear it at their next count. The first reason given stays."""
        self._mine.setdefault(name, reason)

    def count(self, step: int, patience: timedelta | None = None) -> dict[str, str]:
        """Flag name → reason (that of the lowest rank which raised it), the same on all ranks. All ranks must call it
        with the same `step`, an optimizer step; however many callbacks ask at a step, the ranks talk once.

        Args:
            patience: how long to wait for the other ranks; None: two days.

        Raises:
            RuntimeError: a rank is gone, or did not come in time.
        """
        if self._step != step:
            self._step, self._heard = step, self._agree(patience or _PATIENCE)
        return self._heard

    def count_again(self, step: int) -> dict[str, str]:
        """Count anew at a step already counted: for a flag that was raised since. Call it on all ranks alike."""
        self._step = None
        return self.count(step)

    def _agree(self, patience: timedelta) -> dict[str, str]:
        if self._group is None:
            return dict(self._mine)
        import torch
        import torch.distributed as distributed

        group = self._group()
        raised = torch.tensor([len(self._mine)])
        distributed.all_reduce(raised, distributed.ReduceOp.MAX, group, async_op=True).wait(patience)
        if not raised.item():
            return {}
        flags: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(flags, self._mine, group=group)
        return {name: reason for mine in reversed(flags) for name, reason in mine.items()}


_opened: StepVote | None = None


def _world_group() -> Any:
    """The process group of all ranks; None without one."""
    if world_size() == 1:
        return None
    import torch.distributed as distributed

    return distributed.group.WORLD
