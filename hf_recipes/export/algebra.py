"""The arithmetic of a merge on plain tensors: products and sums in fp32, one rounding to the target dtype.

The operations and their order are those of PEFT's default merge (`safe_merge=False`) on a CPU, so results agree to the
bit: `peft/tuners/lora/layer.py` (`get_delta_weight`), `variants.py` (`DoraLinearVariant`, `_DoraConvNdVariant`),
`ia3/layer.py`.
One exception: over a 16-bit base PEFT rounds the update of an embedding (and of MiCA) before it adds it; here there is
one rounding for all, which is also what the live adapter computes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LoraUpdate:
    """A low-rank update ``scale · B·A`` of one weight.

    `a` is (rank, inputs) and `b` (outputs, rank). The weight is (outputs, inputs), or, when `transposed`, as in
    `Conv1D` and embeddings, (inputs, outputs). Of a convolution with one to three dimensions `a` is (rank, inputs,
    *kernel), `b` (outputs, rank, 1, …) and the weight (outputs, inputs, *kernel). `magnitude`, of as many elements as
    outputs, is there for DoRA.
    """

    a: Tensor
    b: Tensor
    scale: float
    transposed: bool = False
    magnitude: Tensor | None = None


def scale_of(alpha: float, rank: int, rank_stabilised: bool) -> float:
    """``alpha / rank``, or ``alpha / √rank`` for rsLoRA (Kalajdzievski 2023, arXiv:2312.03732)."""
    return alpha / math.sqrt(rank) if rank_stabilised else alpha / rank


def pattern_value(patterns: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first pattern (a regular expression for the end of the module's name) that fits, as in
    `peft.utils.other.get_pattern_key`, else `default`."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def delta(update: LoraUpdate) -> Tensor:
    """``scale · B·A`` in fp32, laid out as the weight."""
    if update.a.dim() > 2:
        return _convolution_delta(update.a.float(), update.b.float()) * update.scale
    product = update.b.float() @ update.a.float()
    return (product.T if update.transposed else product) * update.scale


def _convolution_delta(a: Tensor, b: Tensor) -> Tensor:
    """The kernel that does in one convolution what `a` and then `b`, which is 1 wide, do in two: for each place in the
    kernel the product of two matrices. By PEFT's own calls, since another library call may sum in another order."""
    if a.shape[2:] == (1, 1):
        return (b.flatten(1) @ a.flatten(1))[..., None, None]
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[a.dim() - 3]
    return convolve(a.transpose(0, 1), b).transpose(0, 1)


def merge_lora(weight: Tensor, update: LoraUpdate, dtype: torch.dtype) -> Tensor:
    """``W + scale·B·A``; for DoRA ``m / ‖W + ΔW‖ · (W + ΔW)``, the norm over all that feeds each output.

    Args:
        weight: as `update` says, any float dtype; not changed.
        update: what to add (DoRA: Liu et al. 2024, arXiv:2402.09353, eq. 5).
        dtype: of the result; computed in fp32 and rounded once.
    """
    change = delta(update)
    if update.magnitude is None:
        return change.add_(weight).to(dtype)
    if weight.dim() > 2:
        total = weight + change  # not in place: laid out as the weight, which decides in which order a norm is summed
        norm = total.norm(p=2, dim=tuple(range(1, total.dim())), keepdim=True)
        return total.mul_(update.magnitude.float().reshape(norm.shape) / norm).to(dtype)
    # Added once more for the norm, in the layout PEFT has there.
    by_output = weight.T + change.T if update.transposed else weight + change
    factor = (update.magnitude.float() / torch.linalg.norm(by_output, dim=1)).view(-1, 1)
    del by_output
    return (change.add_(weight).mul_(factor.T if update.transposed else factor)).to(dtype)


def merge_change(weight: Tensor, change: Tensor, dtype: torch.dtype) -> Tensor:
    """``W + ΔW``, rounded once; `change` is fp32 and is used up."""
    return change.add_(weight).to(dtype)


def merge_scaling(tensor: Tensor, vector: Tensor, dimension: int, dtype: torch.dtype) -> Tensor:
    """`tensor` with slice ``i`` along `dimension` multiplied by element ``i`` of `vector`, rounded once ((IA)³: Liu et
    al. 2022, arXiv:2205.05638). A grouped convolution has fewer inputs an output (dimension 1) than the vector has
    elements: each group of outputs takes its own part of it."""
    return (tensor.float() * scaling_factors(tensor.shape, vector.float(), dimension)).to(dtype)


def scaling_factors(shape: Sequence[int], vector: Tensor, dimension: int) -> Tensor:
    """`vector`, shaped to be multiplied with a tensor of `shape` along `dimension`; see `merge_scaling`."""
    ones = [1] * len(shape)
    groups = vector.numel() // shape[dimension]
    if groups == 1:
        ones[dimension] = -1
        return vector.reshape(ones)
    parts = vector.reshape(groups, -1).repeat_interleave(shape[0] // groups, dim=0)
    return parts.reshape(*parts.shape, *ones[2:])


def merge_bias(bias: Tensor, lora_bias: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """``bias + scale · lora_bias`` (both 1-D), rounded once."""
    return (bias.float() + lora_bias.float() * scale).to(dtype)


def put_rows(weight: Tensor, rows: Tensor, indices: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`weight` with `rows[i]` in place of row `indices[i]`: PEFT's trainable tokens hold rows, not differences."""
    return weight.to(dtype, copy=True).index_copy_(0, torch.tensor(indices), rows.to(dtype))
