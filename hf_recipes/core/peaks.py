"""What the hardware could do: the published dense peak of known GPUs, else the fastest matrix product measured here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hf_recipes.core.accelerators import accelerator_of_device

_SMALLEST, _LARGEST = 256, 8192
_LONGEST_SECONDS, _TRIES = 0.05, 8


@dataclass(frozen=True)
class Peak:
    """`flops` a second of one device in `dtype`; `source` says where the figure is from."""

    flops: float
    dtype: str
    source: str


def published_peak(device_name: str, dtype: str, *, tf32: bool = False) -> Peak | None:
    """The dense peak of a GPU by its name, or None for one (or a dtype) that is not in the
    catalogue.

    Args:
        device_name: As the driver tells it.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        tf32: Whether float32 products run in TF32.
    """
    accelerator = accelerator_of_device(device_name)
    if accelerator is None:
        return None
    flops = accelerator.flops.get(dtype)
    if dtype == "float32" and tf32:
        flops = accelerator.flops.get("tf32", flops)
    if flops is None:
        return None
    return Peak(flops, dtype, f"published dense peak of {accelerator.name} ({accelerator.date})")


def measured_peak(product: Callable[[int], float], dtype: str, where: str) -> Peak:
    """The best rate of square matrix products, doubled in size until one takes a twentieth of a second.

    Each size is tried several times and the fastest counts: other processes only ever slow a product down.

    Args:
        product: n → seconds that one n × n by n × n product took.
        dtype: Of the product.
        where: Told in the source, such as ``2 threads``.
    """
    best, best_size, size, seconds = 0.0, 0, _SMALLEST, 0.0
    while size <= _LARGEST and seconds < _LONGEST_SECONDS:
        seconds = min(product(size) for _ in range(_TRIES))
        if 2.0 * size**3 / seconds > best:
            best, best_size = 2.0 * size**3 / seconds, size
        size *= 2
    return Peak(best, dtype, f"{best_size} × {best_size} matrix product measured here, {where}")


def find_peak(device: str, dtype: str) -> Peak:
    """The published peak of this GPU where it is known, else a measured one. Imports torch.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: A torch dtype's name that has matrix products.
    """
    import torch

    if device == "cuda":
        name = torch.cuda.get_device_name()
        if known := published_peak(name, dtype, tf32=torch.backends.cuda.matmul.allow_tf32):
            return known
    where = f"{torch.get_num_threads()} threads" if device == "cpu" else torch.cuda.get_device_name()
    return measured_peak(lambda size: time_product(size, device, dtype), dtype, where)


def time_product(size: int, device: str, dtype: str) -> float:
    """Seconds that one product of two square matrices took. Imports torch."""
    import torch

    left, right = (torch.ones(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    torch.mm(left, right)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
