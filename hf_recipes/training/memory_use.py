"""How much memory a rank took from some moment on: of its GPU, or of the machine where it computes on the CPU."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class MemoryUse:
    """The peak since this was made: what the allocator of the GPU reserved; on a CPU, what the process grew by. Made
    before the weights are loaded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        if device.type == "cpu":
            with contextlib.suppress(OSError):
                _CLEAR.write_text("5", encoding="ascii")  # the kernel forgets the peak of before (man 5 proc)
            self._before = psutil.Process().memory_info().rss
        else:
            torch.accelerator.reset_peak_memory_stats(device)

    def peak_bytes(self) -> int | None:
        """Bytes at the peak; None where the system does not tell."""
        if self._device.type != "cpu":
            return int(torch.accelerator.max_memory_reserved(self._device))
        with contextlib.suppress(OSError):
            for line in _STATUS.read_text(encoding="utf-8").splitlines():
                if line.startswith("VmHWM:"):
                    return max(0, int(line.split()[1]) * 1024 - self._before)
        return None
