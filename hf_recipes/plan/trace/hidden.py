"""What operations take inside and give back before they return: no dispatch mode sees it, so it is told here, read from
the operations' source and held against the allocator by a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from torch import Tensor


def hidden_bytes(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> float:
    """Bytes that `operation` (an overload such as ``aten.logsumexp.default``) takes besides its results."""
    name = str(operation).rsplit(".", 1)[0]
    counted = _COUNTED.get(name)
    return counted(args, result) if counted else 0.0


def _logsumexp(args: tuple[Any, ...], result: Tensor) -> float:
    """ATen's ``logsumexp``: the maxima, and exp(x - max) of the size of the argument."""
    return _size(args[0]) + 2 * _size(result)


def _gemm_4bit(args: tuple[Any, ...], result: Tensor) -> float:
    """bitsandbytes' product with a packed weight: the scales in fp32 where they are quantised, then the whole weight in
    the dtype of the activations."""
    activations, _, shape = args[0], args[1], args[2]
    scales = prod(shape) // args[4] * 4
    return prod(shape) * activations.element_size() + scales


def _index(args: tuple[Any, ...], result: Tensor) -> float:
    """Index tensors are brought to one shape."""
    return 0.0


def _size(tensor: Tensor) -> float:
    return tensor.numel() * tensor.element_size()


_COUNTED: dict[str, Callable[[tuple[Any, ...], Any], float]] = {
    "aten.logsumexp": _logsumexp,
    "bitsandbytes.gemm_4bit": _gemm_4bit,
}
