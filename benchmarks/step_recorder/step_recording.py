"""Write down when each optimizer step of any PyTorch trainer ended and what went through it; change nothing.

Three things are watched: the batch handed to ``Trainer.training_step`` (or, without that Trainer, the last one a
DataLoader gave out), the loss on which ``backward`` is called, and the end of ``optimizer.step``, by PyTorch's hook.
One JSON line a step goes to the file: ``wall`` and ``cpu`` (seconds, of this process with its threads and the children
it has waited for), ``tokens``, ``useful`` (not padding), ``labelled``, ``loss``, ``peak_mb``. The first line describes
the process. Only the standard library is imported here: trainers with old Pythons and other packages run it too.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from typing import Any

IGNORED = -100


class Recorder:
    """Sums over the batches of one step, and the file they are written to (opened at the first step, so that launchers
    that only start other processes leave none)."""

    def __init__(self, path: str, pad_id: int) -> None:
        self.path, self.pad_id = path, pad_id
        self.file: Any = None
        self.batch: Any = None
        self.model_facts: dict[str, Any] = {}
        self.by_trainer = False
        self.counts: list[dict[str, int]] = []
        self.losses: list[Any] = []

    def take_batch(self, batch: Any) -> None:
        """Remember the batch that is about to be trained on; it counts once `backward` is called."""
        if isinstance(batch, dict) or hasattr(batch, "keys"):
            ids = batch.get("input_ids", batch.get("tokens"))
            # Held by name: trainers take entries out of the batch.
            self.batch = {"ids": ids, "mask": batch.get("attention_mask"), "labels": batch.get("labels")}

    def take_loss(self, loss: Any) -> None:
        """`backward` was called: the batch was trained on."""
        if self.batch is None:
            return
        self.counts.append(count_tokens(self.batch["ids"], self.batch["mask"], self.batch["labels"], self.pad_id))
        self.losses.append(loss.detach())
        self.batch = None

    def end_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """The optimizer has stepped: write the line."""
        times = os.times()
        line: dict[str, Any] = {"wall": time.perf_counter(), "cpu": sum(times[:4])}
        if not self.counts:
            return
        for name in self.counts[0]:
            line[name] = sum(count[name] for count in self.counts)
        line["loss"] = sum(float(loss) for loss in self.losses)
        line["peak_mb"] = peak_megabytes()
        if self.file is None:
            self.file = open(self.path, "w", buffering=1)  # noqa: SIM115
            self.write({**self.model_facts, **process_facts(optimizer)})
        self.write(line)
        self.counts, self.losses = [], []

    def write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")


def count_tokens(ids: Any, mask: Any, labels: Any, pad_id: int) -> dict[str, int]:
    """Tokens of a batch: all, not padding, labelled. Without a mask a row ends at its last token that is not padding or
    has a label: the pad token may be the one that ends a turn, too."""
    if mask is not None and mask.dim() == 2:
        useful = int((mask != 0).sum())
    else:
        real = ids != pad_id
        if labels is not None:
            real = real | (labels != IGNORED)
        from_the_end = real.flip(-1).int().argmax(-1)
        useful = int(((ids.shape[-1] - from_the_end) * real.any(-1)).sum())
    labelled = int((labels[..., 1:] != IGNORED).sum()) if labels is not None else 0
    return {"tokens": int(ids.numel()), "useful": useful, "labelled": labelled}


def process_facts(optimizer: Any) -> dict[str, Any]:
    """What ran: versions, threads, what the optimizer trains."""
    torch = sys.modules["torch"]
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    packages = ("torch", "transformers", "trl", "peft", "accelerate")
    return {
        "python": sys.version.split()[0],
        "versions": {name: sys.modules[name].__version__ for name in packages if name in sys.modules},
        "threads": torch.get_num_threads(),
        "trained": sum(parameter.numel() for parameter in parameters),
        "trained_dtypes": sorted({str(parameter.dtype) for parameter in parameters}),
        "optimizer": type(optimizer).__name__,
        "learning_rates": [float(group["lr"]) for group in optimizer.param_groups],
    }


def model_facts(trainer: Any, model: Any, inputs: Any) -> dict[str, Any]:
    """What a Trainer's model is made of."""
    return {
        "frozen_dtypes": sorted({str(p.dtype) for p in model.parameters() if not p.requires_grad}),
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "checkpointing": any(getattr(module, "gradient_checkpointing", False) for module in model.modules()),
        "batch_keys": sorted(inputs.keys()),
        "trainer": type(trainer).__name__,
    }


def peak_megabytes() -> float | None:
    """Largest resident memory of this process so far."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def install(path: str, pad_id: int) -> None:
    """Watch the modules that matter, each as soon as it has been imported."""
    recorder = Recorder(path, pad_id)

    def watch_trainer(module: Any) -> None:
        original = module.Trainer.training_step

        def training_step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.by_trainer:
                recorder.by_trainer = True
                recorder.model_facts = model_facts(self, model, inputs)
            recorder.take_batch(inputs)
            return original(self, model, inputs, *args, **kwargs)

        module.Trainer.training_step = training_step

    def watch_loader(module: Any) -> None:
        loader = getattr(module, "StatefulDataLoader", None) or module.DataLoader
        original = loader.__iter__

        def iterate(self: Any) -> Any:
            iterator = original(self)
            return iterator if recorder.by_trainer else watched(iterator)

        def watched(iterator: Any) -> Any:
            for batch in iterator:
                if not recorder.by_trainer:
                    recorder.take_batch(batch)
                yield batch

        loader.__iter__ = iterate

    def watch_backward(module: Any) -> None:
        original = module.Tensor.backward

        def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.take_loss(self)
            return original(self, *args, **kwargs)

        module.Tensor.backward = backward

    watchers = {
        "transformers.trainer": watch_trainer,
        "torch.utils.data.dataloader": watch_loader,
        "torchdata.stateful_dataloader.stateful_dataloader": watch_loader,
        "torch._tensor": watch_backward,
        "torch.optim.optimizer": lambda module: module.register_optimizer_step_post_hook(recorder.end_step),
    }
    sys.meta_path.insert(0, AfterImport(watchers))


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after the module was executed."""

    def __init__(self, watchers: dict[str, Any]) -> None:
        self.watchers = watchers

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        watcher = self.watchers.pop(name, None)
        if watcher is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_watch(module: Any) -> None:
            execute(module)
            watcher(module)

        spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec
