"""How far a written value may lie from the exact one: half a unit in the last place, and the error of fp32 sums."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_recipes.export.output import Output
from hf_recipes.export.rows import RowEdit
from hf_recipes.export.values import expected_value

_EPS = torch.finfo(torch.float32).eps
# Terms in the bound of a sum's error, beyond its length: conversions, the scale, the sum with the base.
_MORE_ROUNDINGS = 64


def share_of_allowed(value: Tensor, expected: Tensor, room: Tensor) -> float:
    """Largest of |value − expected| / (half a unit in the last place + `room`); `expected` in fp32 or fp64."""
    info = torch.finfo(value.dtype)
    allowed = expected.abs() * (info.eps / 2) + info.smallest_normal * info.eps + room
    return float(((value.to(expected.dtype) - expected).abs() / allowed).max())


def row_error(edit: RowEdit, start: Tensor, rows: slice, value: Tensor) -> float:
    """The error of a block of rows, as `share_of_allowed`; infinite where values had only to be put or cast.

    Args:
        edit: of the output, on the CPU.
        start: (height, columns), the block of the base as it is stored.
        rows: which rows of the whole it holds.
        value: the block as written.
    """
    wide = start.float()
    if edit.left is None or edit.right is None:
        if edit.vector is None:
            return 0.0 if torch.equal(edit.apply(wide, rows, wide).to(value.dtype), value) else float("inf")
        # In fp64, which holds the product of two fp32 values exactly; the merge rounds it to fp32 first.
        vector = edit.vector[rows].view(-1, 1) if edit.along_rows else edit.vector
        expected = wide.double() * vector.double()
        return share_of_allowed(value, expected, _EPS * expected.abs())
    # |Σ b·a| ≤ ‖b‖·‖a‖ bounds the terms of every product, and so the error of its sum in any order.
    left, right = edit.left[rows], edit.right
    reach = abs(edit.scale) * left.norm(dim=1) * right.norm(dim=0).max()
    expected = torch.addmm(wide, left, right, alpha=edit.scale)
    room = _EPS * (right.shape[0] + _MORE_ROUNDINGS) * (expected.abs() + reach[:, None])
    if edit.magnitude is not None:
        factor = (edit.magnitude[rows] / expected.norm(dim=1))[:, None]
        expected, room = expected * factor, room * factor.abs()
    return share_of_allowed(value, expected, room)


def whole_error(output: Output, value: Tensor) -> float:
    """The error of a tensor that is not made row by row, as `share_of_allowed`."""
    start = output.start.load()
    if output.edit is None or output.edit.is_empty or not output.edit.is_trained:
        return 0.0 if torch.equal(start.to(value.dtype), value) else float("inf")
    expected, room = expected_value(output, start)
    return share_of_allowed(value, expected, room)
