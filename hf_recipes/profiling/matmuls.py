"""Arithmetic that really ran: operations and dtype of every matrix product and attention in a trace, by its shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from hf_recipes.profiling.trace import Op

# Operator → the places of its two factors, (…, m, k) and (…, k, n). Only those that do the work themselves:
# aten::linear and aten::matmul call one of them.
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::_grouped_mm": (0, 1),
}


class _Attention(NamedTuple):
    """Places of query, key and `is_causal` among the arguments, and the number of (s × d) · (d × s) products."""

    query: int
    key: int
    causal: int
    products: int


# Forward: Q·Kᵀ and P·V. Backward: four for the gradients, and Q·Kᵀ once more (Dao 2023, arXiv:2307.08691).
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Attention(0, 1, 4, 2),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Attention(1, 2, 7, 5),
    "aten::_scaled_dot_product_flash_attention": _Attention(0, 1, 4, 2),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(1, 2, 11, 5),
    "aten::_scaled_dot_product_efficient_attention": _Attention(0, 1, 6, 2),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(1, 2, 11, 5),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(0, 1, 6, 2),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(1, 2, 14, 5),
}
_SDPA = "aten::scaled_dot_product_attention"
_SDPA_MASK = 3  # the place of its attn_mask


def product_flops(op: Op) -> tuple[float, str] | None:
    """(FLOPs, dtype) of a matrix product or fused attention, a multiply-add counted as two; None for other operators.

    Causal attention counts half, as much as the kernels do.
    """
    if places := _PRODUCTS.get(op.name):
        left, right = (op.dims[place] for place in places)
        return 2.0 * prod(left) * right[-1], op.dtypes[places[0]]
    if attention := _ATTENTION.get(op.name):
        *heads, queries, width = op.dims[attention.query]
        keys = op.dims[attention.key][-2]
        half = 0.5 if op.values[attention.causal] == "True" else 1.0
        return 2.0 * attention.products * prod(heads) * queries * keys * width * half, op.dtypes[attention.query]
    return None


def flops_by_dtype(ops: Iterable[Op]) -> dict[str, float]:
    """FLOPs of all matrix products and fused attentions, by the dtype they ran in, the largest first."""
    flops: defaultdict[str, float] = defaultdict(float)
    for op in ops:
        if found := product_flops(op):
            flops[found[1]] += found[0]
    return dict(sorted(flops.items(), key=lambda item: -item[1]))


def attention_calls(ops: Iterable[Op]) -> tuple[int, int]:
    """(calls, calls with a mask) of scaled-dot-product attention in the forward pass."""
    calls = _outermost(op for op in ops if op.name == _SDPA)
    return len(calls), sum(bool(op.dims[_SDPA_MASK]) for op in calls)


def _outermost(ops: Iterable[Op]) -> list[Op]:
    """Those that lie in no other on their thread: under autocast an operator calls itself once more, with its inputs
    cast."""
    outer: list[Op] = []
    for op in sorted(ops, key=lambda op: (op.thread, op.start, -op.end)):
        if not (outer and outer[-1].thread == op.thread and op.end <= outer[-1].end):
            outer.append(op)
    return outer
