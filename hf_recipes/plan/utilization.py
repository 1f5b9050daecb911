"""What share of a device's dense peak a training step reaches: a band from published runs, until one is measured.

The share is of all FLOPs computed, recomputed layers included (the hardware FLOPs utilisation of Korthikanti et al.
2022, arXiv:2205.05198), because that is what the device is busy with. Published, in 16 bits (torchtune's from its
tokens a second and the count of `plan.compute`):

| run | device | share |
| --- | --- | --- |
| torchtune, Llama 3.2 3B full, packed, one device: eager / compiled / and checkpointed | A100 | 49 / 62 / 64 % |
| the same with LoRA / QLoRA, compiled and checkpointed | A100 | 58 / 57 % |
| MosaicML llm-foundry, MPT full, 8 devices: 125M / 350M / 760M / 1B / 3B / 7B | A100 | 45 / 52 / 57 / 60 / 62 / 64 % |
| the same: 760M / 1B / 3B / 7B | H100 | 36 / 42 / 42 / 46 % |
| the same 7B on 128 / 512 devices | H100 | 46 / 42 % |
| torchtitan, Llama 3.1 8B, FSDP, 8 and 128 devices: eager / compiled (MFU) | H100 | 33 / 39 % |
| Llama 3 405B, 8,192 to 16,384 devices (MFU; arXiv:2407.21783, table 4) | H100 | 38 to 43 % |
| PaLM 540B (arXiv:2204.02311, table 3): MFU / HFU | TPU v4 | 46 / 58 % |

Eager layers of transformers are nearest to torchtune's and torchtitan's eager runs, which set the expected value; the
band reaches from 0.6 to 1.4 of it, and all of these runs lie within. A device with more FLOP/s to its bandwidth reaches
less of them: by the square root of the ratio, which is what the MPT tables of A100 and H100 differ by.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

from hf_recipes.core.accelerators import Accelerator
from hf_recipes.core.errors import UserError
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.settings import TrainingSettings

_EAGER = 0.47  # a 7B model on an A100: 46 % by torchtitan's run, 52 % by torchtune's, less what the Trainer adds
_COMPILED = 1.2
_ADAPTED = 0.9  # 58 % of a LoRA step against 64 % of a full one
_EXPERTS = (
    0.6  # an assumption: each expert's product is small; kernels made for it reach 44 % of an H100 (Megatron Core)
)
_LOW, _HIGH, _BEST = 0.6, 1.4, 0.75
_A100_BALANCE = 312e12 / 2.039e12  # FLOPs a byte
_FASTER, _SLOWER = 1.7, 0.6  # how far the balance of another device may move it
_SMALLER = 0.07  # for each e-fold below 7 billion weights: MPT 125M reaches 70 % of what 7B does
_REFERENCE = 7e9


@dataclass(frozen=True)
class Band:
    """A figure that is not known exactly; `low` is the smaller number, whichever of the two is better."""

    low: float
    expected: float
    high: float

    def times(self, factor: float) -> Band:
        """So many times as much."""
        return Band(self.low * factor, self.expected * factor, self.high * factor)


def compute_dtype(settings: TrainingSettings) -> str:
    """What matrix products run in."""
    return settings.autocast_dtype or settings.weights_dtype


def peak_flops(accelerator: Accelerator, settings: TrainingSettings) -> float:
    """The device's dense peak in the job's dtype.

    Raises:
        UserError: the device does not compute in it, or its rate is not known.
    """
    dtype = compute_dtype(settings)
    if dtype not in accelerator.flops:
        known = ", ".join(accelerator.flops) or "none"
        raise UserError(f"{accelerator.name} has no known rate in {dtype} (known: {known}): choose another dtype.")
    return accelerator.flops[dtype]


def default_utilization(
    accelerator: Accelerator, settings: TrainingSettings, geometry: Geometry, weights: float
) -> Band:
    """The share of the peak to expect, as a band.

    Args:
        accelerator: the device.
        settings: dtype and compilation.
        geometry: whether there are adapters, small products beside large ones, and experts.
        weights: of matrix products that one token meets.
    """
    share = _EAGER * _balance_factor(accelerator, settings) * _size_factor(weights)
    share *= (_COMPILED if settings.compiled else 1.0) * (_EXPERTS if geometry.experts else 1.0)
    share *= _ADAPTED if any(tensor.part == "adapter" for tensor in geometry.tensors) else 1.0
    return Band(min(share * _LOW, _BEST), min(share, _BEST), min(share * _HIGH, _BEST))


def _balance_factor(accelerator: Accelerator, settings: TrainingSettings) -> float:
    if not accelerator.bandwidth:
        return 1.0
    balance = peak_flops(accelerator, settings) / accelerator.bandwidth
    return min(_FASTER, max(_SLOWER, sqrt(_A100_BALANCE / balance)))


def _size_factor(weights: float) -> float:
    return min(1.0, max(0.5, 1.0 + _SMALLER * log(max(weights, 1.0) / _REFERENCE)))
