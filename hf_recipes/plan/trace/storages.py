"""Follow every tensor storage while code runs: what is alive, what part it belongs to, and the highest point of each
phase. Works on fake tensors, of which nothing but the size is there."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What an operation takes besides its results and gives back before it returns: (operation, arguments, result) → bytes.
HiddenBytes = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], float]

# (operation, arguments, result, tracker) → part, or None.
PartOfResult = Callable[[Any, tuple[Any, ...], Any, "StorageTracker"], str | None]

TEMPORARIES = "temporaries"


class StorageTracker(TorchDispatchMode):
    """Counts storages from their first sight to their release.

    A storage belongs to the part that was current when it was first seen, until `assign` says otherwise.

    Attributes:
        live: bytes alive now, by part.
        part: what newly allocated storages belong to; may be set.
        instead: what is called in place of operations, by name (``aten.mm.default``).
        peaks: bytes by part at the highest point of each phase, in the order of the phases' first beginning.
    """

    def __init__(
        self,
        hidden_bytes: HiddenBytes | None = None,
        granularity: int = 1,
        part_of_result: PartOfResult | None = None,
        instead: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """
        Args:
            hidden_bytes: what operations take inside.
            granularity: sizes are rounded up to multiples of it, as the device's allocator does.
            part_of_result: says which part an operation's result belongs to; None for the current one.
            instead: the attribute's start.
        """
        super().__init__()
        self.live: Counter[str] = Counter()
        self.peaks: dict[str, dict[str, float]] = {}
        self._parts: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._hidden_bytes = hidden_bytes
        self._granularity = granularity
        self._part_of_result = part_of_result
        self.instead = dict(instead or {})
        self._phase: str | None = None
        self.part = "other"

    def begin(self, phase: str) -> None:
        """From now on peaks belong to `phase`."""
        self._phase = phase
        self._note()

    def assign(self, tensors: Iterable[Tensor], part: str) -> None:
        """Say that these tensors' storages belong to `part`, whether seen before or not."""
        for tensor in tensors:
            key = storage_key(tensor)
            if key in self._parts:
                reference, size, before = self._parts[key]
                self.live[before] -= size
                self.live[part] += size
                self._parts[key] = (reference, size, part)
            else:
                self._follow(tensor, part)
        self._note()

    def part_of(self, tensor: Tensor) -> str | None:
        """The part a tensor's storage belongs to; None for one not seen."""
        found = self._parts.get(storage_key(tensor))
        return found[2] if found else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = self.instead.get(str(func), func)(*args, **kwargs)
        grown = False
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and storage_key(leaf) not in self._parts:
                part = self._part_of_result(func, args, leaf, self) if self._part_of_result else None
                self._follow(leaf, part or self.part)
                grown = True
        hidden = self._hidden_bytes(func, args, kwargs, result) if self._hidden_bytes else 0.0
        if grown or hidden:
            self._note(hidden)
        return result

    def _follow(self, tensor: Tensor, part: str) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // self._granularity) * self._granularity
        self._parts[key] = (weakref.ref(storage, lambda _: self._release(key)), size, part)
        self.live[part] += size

    def _release(self, key: int) -> None:
        _, size, part = self._parts.pop(key)
        self.live[part] -= size

    def _note(self, hidden: float = 0.0) -> None:
        if self._phase is None:
            return
        highest = self.peaks.setdefault(self._phase, {})
        if sum(self.live.values()) + hidden > sum(highest.values()):
            self.peaks[self._phase] = {part: float(size) for part, size in self.live.items() if size}
            if hidden:
                self.peaks[self._phase][TEMPORARIES] = self.peaks[self._phase].get(TEMPORARIES, 0.0) + hidden


def storage_key(tensor: Tensor) -> int:
    """The identity of a tensor's storage, the same for all its views."""
    return int(tensor.untyped_storage()._cdata)


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages of `tensors`, each once."""
    return sum({storage_key(each): each.untyped_storage().nbytes() for each in tensors}.values())
