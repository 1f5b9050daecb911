"""This machine, measured: what its devices and host really do, and what the catalogue says of them. Works on a CPU.

Every rate is the best of a few short tries: other processes only ever slow a measurement down.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hf_recipes.core.accelerators import Accelerator, accelerator_of_device
from hf_recipes.core.container_memory import container_memory, free_memory_bytes
from hf_recipes.core.cores import usable_cores
from hf_recipes.core.errors import UserError, file_problem
from hf_recipes.core.peaks import measured_peak, time_product

_TRIES = 8
_COPIED_BYTES = 1 << 27  # beyond the caches of CPUs and GPUs
_WRITTEN_BYTES = 1 << 27
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Device:
    """One device as measured.

    Attributes:
        kind: ``cuda`` (also ROCm) or ``cpu``.
        name: as the driver tells it, or the processor's.
        memory_bytes, free_bytes: all of it, and what is free now.
        flops: best rate of a large matrix product by dtype.
        bandwidth: bytes a second read and written by a copy within its memory.
        host_link: bytes a second from pinned host memory; of a CPU the same as `bandwidth`.
        catalogue: what the catalogue has under this name; None where nothing.
    """

    kind: str
    name: str
    memory_bytes: int
    free_bytes: int
    flops: dict[str, float]
    bandwidth: float
    host_link: float
    catalogue: Accelerator | None

    def as_accelerator(self) -> Accelerator:
        """To plan with: measured rates, the catalogue's link and power where it knows the device."""
        known = self.catalogue
        return Accelerator(
            key=known.key if known else "here",
            name=self.name,
            # A GPU is planned for as a whole; the machine's own memory is never all there.
            memory_bytes=float(self.free_bytes if self.kind == "cpu" else self.memory_bytes),
            bandwidth=self.bandwidth,
            flops=dict(self.flops),
            link=known.link if known else 0.0,
            host_link=self.host_link,
            watts=known.watts if known else 0.0,
            source="measured here",
            date=datetime.now(UTC).date().isoformat(),
            memory_source="measured",
        )


@dataclass(frozen=True)
class Machine:
    """This machine: its devices (the CPU alone where there is no GPU), cores, memory (a container's limit counts) and
    the rate at which a file is written and synced, bytes a second."""

    devices: tuple[Device, ...]
    cores: int
    ram_bytes: int
    ram_free_bytes: int
    disk_write: float


def measure_machine(directory: Path | str | None = None, *, copied_bytes: int = _COPIED_BYTES) -> Machine:
    """Measure this machine; a second or two for each device. Imports torch.

    Args:
        directory: where the file for the disk's rate is written (and removed); by default the current one.
        copied_bytes: size of the copies that bandwidth is taken from; beyond the caches.

    Raises:
        UserError: nothing can be written there.
    """
    import psutil
    import torch

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count() if kind == "cuda" else 1
    limits = [limit for limit, _ in container_memory()]
    return Machine(
        devices=tuple(_measure_device(kind, index, copied_bytes) for index in range(count)),
        cores=usable_cores(),
        ram_bytes=min([psutil.virtual_memory().total, *limits]),
        ram_free_bytes=free_memory_bytes(),
        disk_write=_disk_write(Path(directory or ".")),
    )


def _measure_device(kind: str, index: int, copied_bytes: int) -> Device:
    import torch

    if kind == "cpu":
        import psutil

        total = min([psutil.virtual_memory().total, *(limit for limit, _ in container_memory())])
        copy = _copy_rate("cpu", copied_bytes)
        return Device("cpu", _cpu_name(), total, free_memory_bytes(), _rates("cpu"), 2 * copy, 2 * copy, None)
    with torch.cuda.device(index):
        name = torch.cuda.get_device_name(index)
        free, total = torch.cuda.mem_get_info(index)
        copied = min(copied_bytes, free // 4)
        return Device(
            kind="cuda",
            name=name,
            memory_bytes=total,
            free_bytes=free,
            flops=_rates("cuda"),
            bandwidth=2 * _copy_rate("cuda", copied),
            host_link=_host_copy_rate(copied),
            catalogue=accelerator_of_device(name),
        )


def _rates(device: str) -> dict[str, float]:
    """The measured peak in every dtype that the device has products in, emulated ones (slowly) too."""
    rates: dict[str, float] = {}
    for dtype in _DTYPES:
        with suppress(RuntimeError):  # a dtype without products here
            product = functools.partial(_product_seconds, device, dtype)
            rates[dtype] = measured_peak(product, dtype, "").flops
    return rates


def _product_seconds(device: str, dtype: str, size: int) -> float:
    return time_product(size, device, dtype)


def _copy_rate(device: str, count: int) -> float:
    """Bytes copied a second within the device's memory (each is read once and written once)."""
    import torch

    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return count / _best_seconds(lambda: target.copy_(source), device)


def _host_copy_rate(count: int) -> float:
    import torch

    source = torch.ones(count, dtype=torch.uint8).pin_memory()
    target = torch.empty(count, dtype=torch.uint8, device="cuda")
    return count / _best_seconds(lambda: target.copy_(source, non_blocking=True), "cuda")


def _best_seconds(action: Callable[[], Any], device: str) -> float:
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = float("inf")
    for _ in range(_TRIES):
        wait()
        start = time.perf_counter()
        action()
        wait()
        best = min(best, time.perf_counter() - start)
    return best


def _disk_write(directory: Path) -> float:
    block = os.urandom(1 << 20)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            start = time.perf_counter()
            for _ in range(_WRITTEN_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return _WRITTEN_BYTES / (time.perf_counter() - start)
    except OSError as error:
        error.filename = str(directory)
        raise UserError(file_problem(error)) from None


def _cpu_name() -> str:
    import platform

    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "cpu"
