"""Which dtype to load and compute in: bf16 wherever the hardware has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_recipes.core.dtypes import SHORT_NAMES
from hf_recipes.core.errors import UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Hardware:
    """What the choice depends on. `device` is ``cuda``, ``cpu``, …; `bf16` whether it computes bf16 in hardware."""

    device: str
    bf16: bool


@dataclass(frozen=True)
class Precision:
    """How the model is held and computed.

    `dtype` is what weights are loaded in (``bfloat16``, ``float16``, ``float32``); `bf16` and `fp16` are the Trainer's
    autocast switches; `why` is told when the hardware, not the recipe, decided.
    """

    dtype: str
    bf16: bool
    fp16: bool
    why: str | None = None

    @property
    def autocast(self) -> bool:
        """Whether the Trainer computes under autocast."""
        return self.bf16 or self.fp16

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """What the Trainer autocasts to; None without autocast."""
        import torch

        return torch.bfloat16 if self.bf16 else torch.float16 if self.fp16 else None


def detect_hardware() -> Hardware:
    """Look at this process's accelerator, or the CPU's instruction set. Imports torch."""
    import torch

    if torch.cuda.is_available():
        return Hardware("cuda", torch.cuda.is_bf16_supported(including_emulation=False))
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        return Hardware(accelerator.type, accelerator.type in ("xpu", "npu", "hpu"))
    return Hardware("cpu", bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def choose_precision(
    method: str, hardware: Hardware, *, dtype: str | None = None, bf16: bool | None = None, fp16: bool = False
) -> Precision:
    """Decide dtype and autocast from what the recipe asks and the hardware has.

    Adapters train on a frozen 16-bit base (bf16 where the hardware has it), and so do the layers of a partial
    fine-tune, which are cast up themselves; full fine-tuning keeps fp32 weights, since bf16 ones have no room for small
    updates, and computes in bf16 autocast.

    Args:
        method: The recipe's method.
        hardware: From `detect_hardware`.
        dtype: The recipe's ``dtype`` when given (canonical name or ``auto``).
        bf16: The recipe's ``bf16`` when given.
        fp16: The recipe's ``fp16``.

    Raises:
        UserError: fp16 on a CPU (the Trainer would ignore it in silence), or fp16 and bf16 both.
    """
    if fp16 and bf16:
        raise UserError("'fp16' and 'bf16' are both on: keep one.")
    if hardware.device == "cpu" and (fp16 or dtype == "float16"):
        raise UserError("fp16 does not train on a CPU: remove 'fp16' / 'dtype: fp16' (fp32 or bf16 is used there).")
    asked = None if dtype == "auto" else dtype
    if fp16:
        return Precision(asked or ("float32" if method == "full" else "float16"), False, True)
    autocast = hardware.bf16 if bf16 is None else bf16
    if asked is not None:
        return Precision(asked, autocast and asked != "float16", asked == "float16")
    if method == "full":
        return Precision("float32", autocast, False, None if autocast else _why(hardware))
    return Precision("bfloat16", True, False) if autocast else Precision("float32", False, False, _why(hardware))


def _why(hardware: Hardware) -> str | None:
    if hardware.bf16:
        return None
    return f"this {hardware.device} has no bf16 arithmetic (it would be emulated, many times slower): computing in fp32"


def describe(precision: Precision) -> str:
    """``bf16 weights, bf16 autocast`` and the like, for the screen."""
    autocast = "bf16 autocast" if precision.bf16 else "fp16 autocast" if precision.fp16 else "no autocast"
    return f"{SHORT_NAMES[precision.dtype]} weights, {autocast}"
