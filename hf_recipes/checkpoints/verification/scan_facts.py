"""What a scan tells of a file and of a tensor: plain data, which all checks read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TensorFacts:
    """A tensor's dtype (safetensors' name), shape, and largest absolute value: NaN when any value is NaN, None when
    the values were not read or there are none."""

    dtype: str
    shape: tuple[int, ...]
    abs_max: float | None = None


@dataclass(frozen=True)
class FileScan:
    """A file's size and, where asked for, its SHA-256; its tensors if it is a sound safetensors file; what is wrong
    with its form.

    `note` says what could not be judged; `content` is what checks use of a JSON file; `foreign` are the names that a
    pickle would import and no checkpoint holds.
    """

    bytes: int
    sha256: str | None = None
    tensors: dict[str, TensorFacts] | None = None
    damage: str | None = None
    note: str | None = None
    content: Any = None
    foreign: tuple[str, ...] = ()
