"""`MemoryWatch`: memory that keeps growing, told long before it is full."""

from __future__ import annotations

from typing import Any

import psutil
import torch
from transformers import TrainerCallback

from hf_recipes.callbacks.memory_growth import MemoryGrowth, leak_detectors
from hf_recipes.core import ranks
from hf_recipes.core.container_memory import container_memory
from hf_recipes.core.events import event_log
from hf_recipes.core.log import logger


class MemoryWatch(TrainerCallback):
    """Watches this process's resident memory, and on a GPU the memory allocated there, after each step, and says when
    it leaks. No sync: both are numbers the host knows.

    Every rank watches its own memory; what a rank above 0 sees goes to its own ``events.rankN.jsonl``. Nothing is kept
    over a resume, since a new process begins with new memory.

    Events: "alarm" with `detector` "memory", `verdict` "leak", `where` ("GPU" or "host"), `used_gb`, `total_gb`,
    `mb_a_step`, `steps_until_full`.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._process = psutil.Process()
        self._device = args.device
        self._detectors: dict[str, tuple[MemoryGrowth, ...]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for where, used in self._used().items():
            detectors = self._detectors.setdefault(where, leak_detectors())
            told = any(detector.told for detector in detectors)
            verdicts = [detector.judge(used) for detector in detectors]
            rates = [verdict.bytes_a_step for verdict in verdicts if verdict.first]
            if rates and not told:
                self._alarm(args, state, where, used, rates[0])

    def _used(self) -> dict[str, int]:
        used = {"host": self._process.memory_info().rss}
        if self._device.type == "cuda":
            used["GPU"] = torch.cuda.memory_allocated(self._device)
        return used

    def _alarm(self, args: Any, state: Any, where: str, used: int, bytes_a_step: float) -> None:
        total = memory_total_bytes(self._device if where == "GPU" else torch.device("cpu"))
        left = max(0, int((total - used) / bytes_a_step))
        sentence = leak_sentence(state.global_step, ranks.rank(), where, used, total, bytes_a_step, left)
        logger.warning(sentence)
        event_log(args.output_dir).write(
            "alarm",
            state.global_step,
            detector="memory",
            message=sentence,
            verdict="leak",
            where=where,
            used_gb=used / 1e9,
            total_gb=total / 1e9,
            mb_a_step=bytes_a_step / 1e6,
            steps_until_full=left,
        )


def leak_sentence(
    step: int, rank: int, where: str, used: float, total: float, bytes_a_step: float, steps_left: int
) -> str:
    """What was seen and what to look for; bytes in, MB and GB (10⁶, 10⁹) told."""
    causes = "losses or outputs kept with their graph (use loss.item() or .detach()), tensors collected in lists, "
    if where == "GPU":
        causes += "logged metrics that are still tensors, batches kept by a callback"
    else:
        causes += "predictions gathered in evaluation, rows cached by the dataset (dataloader_num_workers: 0 tells)"
    return (
        f"Step {step}: {where} memory of rank {rank} grows by {bytes_a_step / 1e6:.3g} MB a step without coming back: "
        f"{used / 1e9:.3g} of {total / 1e9:.3g} GB, full in about {steps_left:,} steps at this rate. Usual causes: "
        f"{causes}. To go on meanwhile: save_steps below that number, and resume."
    )


def memory_total_bytes(device: torch.device) -> int:
    """The memory of a device; of the CPU, what the machine has or the container may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return min([psutil.virtual_memory().total, *(limit for limit, _ in container_memory())])
