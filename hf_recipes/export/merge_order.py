"""How a merge is to be done: the arguments of `merge_adapter`, checked before anything is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.core.errors import UserError
from hf_recipes.export.bases.base_values import BaseValues
from hf_recipes.export.combination import Combination
from hf_recipes.export.shards import parse_size

if TYPE_CHECKING:
    from hf_recipes.export.bases.trained_quantization import TrainedQuantization
    from hf_recipes.export.proofs.logits import Prompts, Rows

Proof = Literal["tensors", "logits", "off"]
# torch's name of a dtype that can be merged to → safetensors' name.
SAFETENSORS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class MergeOrder:
    """How it is merged: `merge_adapter`'s arguments, checked. `dtype` is torch's name."""

    output: Path
    dtype: str
    proof: Proof
    combination: Combination
    base_values: BaseValues
    quantization: str | TrainedQuantization | None
    max_shard_size: str | None
    threads: int | None
    device: str
    rows: Rows
    labels: Rows
    prompts: Prompts


def target_dtype(dtype: str) -> str:
    name = canonical_dtype_name(dtype, known="bf16, fp16 or fp32")
    if name not in SAFETENSORS:
        raise UserError(f"dtype: '{dtype}' names no dtype to merge to: write bf16, fp16 or fp32.")
    return name


def check_order(order: MergeOrder) -> None:
    if order.proof not in get_args(Proof):
        raise UserError(f"proof: '{order.proof}' is none of {', '.join(get_args(Proof))}.")
    if order.proof == "logits" and not order.combination.is_sum:
        raise UserError(f"proof: PEFT runs no live model of '{order.combination.method}': take the proof by tensors.")
    if order.max_shard_size is not None:
        parse_size(order.max_shard_size)
    if order.device != "cpu":
        _check_device(order.device)


def _check_device(device: str) -> None:
    match = re.fullmatch(r"cuda(?::(\d+))?", device, re.ASCII)
    if match is None:
        raise UserError(f"--device: '{device}' is neither cpu nor cuda (or cuda:0, cuda:1, …).")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(match[1] or 0) >= count:
        raise UserError(f"--device: '{device}' is not there (torch finds {count} GPUs): leave it out to use the CPU.")
