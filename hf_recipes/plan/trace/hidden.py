"""What operations take inside and give back before they return: no dispatch mode sees it, so it is told here, read from
the operations' source and held against the allocator by a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from torch import Tensor


def hidden_on(device: str) -> Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], float]:
    """What tells the bytes that an operation (an overload: ``aten.logsumexp.default``) takes besides its results.

    Args:
        device: ``cpu`` or ``cuda``; some code of the CPU has no counterpart in a GPU's kernels.
    """
    counted = _COUNTED | _COUNTED_ON_CPU if device == "cpu" else _COUNTED

    def hidden_bytes(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> float:
        count = counted.get(str(operation).rsplit(".", 1)[0])
        return count(args, result) if count else 0.0

    return hidden_bytes


def _logsumexp(args: tuple[Any, ...], result: Tensor) -> float:
    """ATen's ``logsumexp``: the maxima, and exp(x - max) of the size of the argument."""
    return _size(args[0]) + 2 * _size(result)


def _gemm_4bit(args: tuple[Any, ...], result: Tensor) -> float:
    """bitsandbytes' product with a packed weight: the scales in fp32 where they are quantised, then the whole weight in
    the dtype of the activations."""
    activations, _, shape = args[0], args[1], args[2]
    scales = prod(shape) // args[4] * 4
    return prod(shape) * activations.element_size() + scales


def _pointwise(args: tuple[Any, ...], result: Tensor) -> float:
    """TensorIterator on the CPU first casts what is of another dtype than the result; GPU kernels cast as they go."""
    operands = [each for each in args[:2] if isinstance(each, Tensor) and each.dim()]
    if len(operands) < 2:
        return 0.0
    common = max(each.element_size() for each in operands)
    return float(sum(each.numel() * common for each in operands if each.element_size() < common))


def _update_8bit(args: tuple[Any, ...], result: None) -> float:
    """bitsandbytes' step in plain PyTorch: both states, the gradient, the root and the root corrected, in fp32."""
    return 5.0 * 4 * args[2].numel()


def _size(tensor: Tensor) -> float:
    return tensor.numel() * tensor.element_size()


_Count = Callable[[tuple[Any, ...], Any], float]
_COUNTED: dict[str, _Count] = {"aten.logsumexp": _logsumexp, "bitsandbytes.gemm_4bit": _gemm_4bit}
_COUNTED_ON_CPU: dict[str, _Count] = {
    **{f"aten.{name}{place}": _pointwise for name in ("add", "sub", "mul", "div") for place in ("", "_")},
    "bitsandbytes.optimizer_update_8bit_blockwise": _update_8bit,
}


def _grouped_mm(first: Tensor, second: Tensor, offsets: Tensor, bias: Any = None, out_dtype: Any = None) -> Tensor:
    """The result of the experts' product in any dtype; PyTorch's own fake one refuses all but bfloat16."""
    shape = (first.shape[0], second.shape[-1])
    if second.dim() == 2:  # the gradient of the experts' weights
        shape = (offsets.shape[0], *shape)  # type: ignore[assignment]
    return first.new_empty(shape, dtype=out_dtype or first.dtype)


# Stand-ins for operations that fake tensors cannot run.
INSTEAD: dict[str, Callable[..., Any]] = {"aten._grouped_mm.default": _grouped_mm}
