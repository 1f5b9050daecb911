"""What the hardware could do: the published dense peak of known GPUs, else the fastest matrix product measured here."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

# Dense TFLOP/s (no sparsity, fp32 accumulation), from NVIDIA's data sheets and architecture papers as of November 2026.
# Name in the device's name → (bf16 and fp16, TF32, fp32); the first that matches as a word, so variants stand first.
# Turing and Volta have tensor cores for fp16 alone.
_DENSE_TFLOPS: tuple[tuple[str, tuple[float, float, float]], ...] = (
    ("H200 NVL", (835, 418, 60)),
    ("H200", (989, 495, 67)),
    ("H100 NVL", (835, 418, 60)),
    ("H100 PCIe", (756, 378, 51)),
    ("H100", (989, 495, 67)),
    ("A100", (312, 156, 19.5)),
    ("L40S", (362, 183, 91.6)),
    ("A10", (125, 62.5, 31.2)),
    ("L4", (121, 60, 30.3)),
    ("T4", (65, 8.1, 8.1)),
    ("V100", (125, 15.7, 15.7)),
    ("RTX 3090", (71, 35.6, 35.6)),
    ("RTX 4090", (165, 82.6, 82.6)),
    ("RTX 5090", (209.5, 104.8, 104.8)),
)
_FP16_ONLY = ("T4", "V100")
_SMALLEST, _LARGEST = 256, 8192
_LONGEST_SECONDS, _TRIES = 0.05, 8


@dataclass(frozen=True)
class Peak:
    """`flops` a second of one device in `dtype`; `source` says where the figure is from."""

    flops: float
    dtype: str
    source: str


def published_peak(device_name: str, dtype: str, *, tf32: bool = False) -> Peak | None:
    """The dense peak of a GPU by its name, or None for one (or a dtype) that is not in the table.

    Args:
        device_name: As the driver tells it.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        tf32: Whether float32 products run in TF32.
    """
    for name, (half, tensor, single) in _DENSE_TFLOPS:
        if not re.search(rf"\b{re.escape(name)}\b", device_name, re.IGNORECASE):
            continue
        known = {"float16": half, "float32": tensor if tf32 else single}
        if name not in _FP16_ONLY:
            known["bfloat16"] = half
        if dtype not in known:
            return None
        return Peak(known[dtype] * 1e12, dtype, f"published dense peak of {name}, November 2026")
    return None


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
    return measured_peak(lambda size: _time_product(size, device, dtype), dtype, where)


def _time_product(size: int, device: str, dtype: str) -> float:
    import torch

    left, right = (torch.ones(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    torch.mm(left, right)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
