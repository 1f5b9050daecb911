"""One accelerator's figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """Figures of one device; dense, without sparsity.

    Attributes:
        key: as users write it (``h100``, ``a100-80g``, ``rtx-4090``).
        name: the maker's name.
        memory_bytes: usable by programs (the driver tells a little less than the maker prints).
        bandwidth: bytes a second of its memory.
        flops: dense FLOP/s by dtype (``bfloat16``, ``float16``, ``float32``, ``tf32``, ``float8``); absent: emulated or
            none.
        link: bytes a second, both directions together, to its neighbours in a node; 0 without NVLink or the like.
        host_link: bytes a second to the host, one direction (PCIe).
        watts: board power.
        source: where the figures are from.
        date: when they were read, ISO.
    """

    key: str
    name: str
    memory_bytes: float
    bandwidth: float
    flops: dict[str, float]
    link: float
    host_link: float
    watts: float
    source: str
    date: str
