"""Out of memory: in which phase of training, and which setting helps there."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from hf_recipes.core.errors import CheckFailed

Phase = Literal["forward", "backward", "optimizer step", "evaluation", "save", "loading", "elsewhere"]

# (end of the file's path or a part of it, function names or None for any) → phase. Order does not matter: of a
# traceback the outermost frame that matches decides, so the forward pass that checkpointing repeats inside backward is
# backward, and a forward pass inside evaluation is evaluation.
_MARKERS: tuple[tuple[str, frozenset[str] | None, Phase], ...] = (
    (
        "trainer.py",
        frozenset({"evaluate", "_evaluate", "predict", "evaluation_loop", "prediction_step"}),
        "evaluation",
    ),
    ("transformers/generation/", None, "evaluation"),
    (
        "trainer.py",
        frozenset({"_save_checkpoint", "save_model", "_save", "_save_optimizer_and_scheduler"}),
        "save",
    ),
    ("torch/serialization.py", frozenset({"save", "_save"}), "save"),
    ("safetensors/torch.py", frozenset({"save", "save_file", "save_model"}), "save"),
    ("modeling_utils.py", frozenset({"save_pretrained"}), "save"),
    ("peft_model.py", frozenset({"save_pretrained"}), "save"),
    ("modeling_utils.py", frozenset({"from_pretrained"}), "loading"),
    ("auto_factory.py", frozenset({"from_pretrained"}), "loading"),
    ("peft_model.py", frozenset({"from_pretrained", "load_adapter"}), "loading"),
    (
        "trainer.py",
        frozenset({"_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_best_model"}),
        "loading",
    ),
    ("torch/serialization.py", frozenset({"load"}), "loading"),
    ("accelerator.py", frozenset({"backward"}), "backward"),
    ("torch/_tensor.py", frozenset({"backward"}), "backward"),
    ("torch/autograd/__init__.py", frozenset({"backward", "grad"}), "backward"),
    ("deepspeed/runtime/engine.py", frozenset({"backward"}), "backward"),
    ("accelerate/optimizer.py", frozenset({"step"}), "optimizer step"),
    ("torch/optim/", None, "optimizer step"),
    ("bitsandbytes/optim/", None, "optimizer step"),
    ("deepspeed/runtime/engine.py", frozenset({"step"}), "optimizer step"),
    ("torch/amp/grad_scaler.py", frozenset({"step"}), "optimizer step"),
    ("trainer.py", frozenset({"compute_loss"}), "forward"),
    ("torch/nn/modules/module.py", frozenset({"_call_impl", "_wrapped_call_impl"}), "forward"),
)

_MESSAGES = re.compile(
    r"out of memory|can(no|')t allocate memory|not enough memory|bad_alloc|_ALLOC_FAILED",
    re.IGNORECASE,
)
_SIZE = re.compile(r"tried to allocate ([\d.]+ ?[KMGT]i?B|\d+ bytes)", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says that memory ran out, on whatever device."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if _says_so(cause):
            return True
        cause = cause.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None


def phase_of(frames: Iterable[tuple[str, str]]) -> Phase:
    """The phase of training that a traceback ends in.

    Args:
        frames: (file, function) from the outermost to the innermost.
    """
    for file, function in frames:
        path = file.replace("\\", "/")
        for place, functions, phase in _MARKERS:
            matches = f"/{place}" in path if place.endswith("/") else path.endswith(place)
            if matches and (functions is None or function in functions):
                return phase
    return "elsewhere"


def asked_size(message: str) -> str | None:
    """The size that could not be had, as the message tells it (bytes are put into GB)."""
    match = _SIZE.search(message)
    if match is None:
        return None
    size = match.group(1)
    return f"{int(size.split()[0]) / 1e9:,.3g} GB" if size.endswith("bytes") else size


def describe_out_of_memory(error: BaseException, args: Any | None = None) -> str:
    """One sentence: the phase, the size asked for, and which settings help there and are not at their end already.

    Args:
        error: for which `is_out_of_memory` holds, with its traceback.
        args: the run's `TrainingArguments`, if there are any.
    """
    phase = phase_of((frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__))
    size = asked_size(str(error))
    asked = f" ({size} more were asked for)" if size else ""
    where = {"elsewhere": "outside the training steps", "save": "while saving", "loading": "while loading"}
    place = where.get(phase, f"in the {phase}" + (" pass" if phase in ("forward", "backward") else ""))
    return f"Out of memory {place}{asked}. What to do, the first that fits: {'; '.join(advice_for(phase, args))}."


@contextmanager
def explained_out_of_memory(args: Any | None = None) -> Iterator[None]:
    """Turn an out-of-memory error into one sentence that says what to change: put it around `trainer.train()`.

    Args:
        args: the run's `TrainingArguments`; settings that are at their end already are then not advised.

    Raises:
        CheckFailed: from the error, when memory ran out; every other error passes as it is.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise CheckFailed(describe_out_of_memory(error, args)) from error


def advice_for(phase: Phase, args: Any | None = None) -> list[str]:
    """What helps in a phase, in recipe keys, the cheapest first (domain knowledge; never empty)."""
    settings = _Settings(args)
    knobs = {
        "forward": [settings.micro_batch(), settings.checkpointing(), _SHORTER, _KERNEL],
        "backward": [settings.checkpointing(), settings.micro_batch(), settings.buckets(), _SHORTER],
        "optimizer step": [settings.optimizer(), _LORA, settings.sharding()],
        "evaluation": [settings.eval_batch(), settings.losses_only(), _SHORTER],
        "save": [_SAVE],
        "loading": [_LOADING, _LORA],
        "elsewhere": [settings.micro_batch(), settings.checkpointing(), _SHORTER],
    }
    return [knob for knob in knobs[phase] if knob]


_SHORTER = "shorten max_length"
_KERNEL = "with a large vocabulary, on a GPU, loss_kernel: liger or cce"
_LORA = "train an adapter (method: lora, or qlora) instead of all weights"
_SAVE = "keep fewer other processes on the machine while it saves, or save sharded (fsdp or ZeRO-3 state)"
_LOADING = "load in 16 bits (dtype: bf16) or 4 (method: qlora), and see what else uses the memory (nvidia-smi, free)"


class _Settings:
    """Reads a run's `TrainingArguments`; without them nothing counts as set."""

    def __init__(self, args: Any | None) -> None:
        self._args = args

    def _get(self, name: str, default: Any) -> Any:
        return getattr(self._args, name, default)

    def micro_batch(self) -> str:
        rows = self._get("per_device_train_batch_size", None)
        if rows == 1:
            return ""
        accumulation = self._get("gradient_accumulation_steps", 1)
        steps = f"{rows * accumulation}" if rows else "as many times more"
        return f"per_device_train_batch_size: 1 with gradient_accumulation_steps: {steps} (the same batch)"

    def checkpointing(self) -> str:
        if self._get("activation_checkpointing", False):
            return ""
        return "activation_checkpointing: true (30 to 50 % of the activations, about 25 % more time)"

    def buckets(self) -> str:
        if self._get("world_size", 1) == 1:
            return ""
        if self._get("deepspeed", None):
            return "smaller reduce_bucket_size and allgather_bucket_size in the DeepSpeed configuration (5e7)"
        return "a smaller reduce bucket (ddp_bucket_cap_mb: 10)"

    def optimizer(self) -> str:
        name = str(getattr(self._get("optim", ""), "value", self._get("optim", "")))
        return "" if "8bit" in name or "paged" in name else "optim: paged_adamw_8bit (states in 8 bits, paged out)"

    def sharding(self) -> str:
        if self._get("deepspeed", None) or self._get("fsdp", None):
            return "offload the optimizer to the CPU (offload_optimizer in DeepSpeed, offload_params in FSDP)"
        return "spread or offload optimizer states (DeepSpeed ZeRO with offload_optimizer)"

    def eval_batch(self) -> str:
        return "" if self._get("per_device_eval_batch_size", None) == 1 else "per_device_eval_batch_size: 1"

    def losses_only(self) -> str:
        if self._get("prediction_loss_only", False):
            return ""
        return "prediction_loss_only: true, so that logits are not collected (or eval_accumulation_steps: 1)"
