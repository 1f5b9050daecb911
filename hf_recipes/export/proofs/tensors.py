"""Proof by tensors: the written files are read again and every value is held against base and adapter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.tensors import DamagedFile, TensorEntry, read_header
from hf_recipes.export.plan import MergePlan, Output
from hf_recipes.export.stream import blocks, is_finite
from hf_recipes.export.values import load_update


def prove_tensors(plan: MergePlan, directory: Path) -> dict[str, Any]:
    """Check the merged files in `directory` against the plan; the adapter's products are computed anew, by another
    route (blocks of rows, `addmm`).

    Copied tensors must have the base's bytes, converted ones its rounded values; merged ones must lie within one
    rounding of ``W + ΔW``, that is half a unit in the last place of the target dtype, plus the error of fp32 sums.

    Returns:
        Counts, the seconds taken, and ``largest_error``: the largest deviation as a share of what is allowed.

    Raises:
        CheckFailed: what is wrong, with the tensor's name.
    """
    started = time.perf_counter()
    written: dict[str, TensorEntry] = {}
    for shard in plan.shards():
        try:
            written |= read_header(directory / shard)[0]
        except (DamagedFile, OSError) as error:
            raise CheckFailed(f"the merged file cannot be read again: {error}") from None
    expected = {output.spec.name for output in plan.outputs}
    if set(written) != expected:
        raise CheckFailed(f"the merged files hold other tensors than planned: {sorted(set(written) ^ expected)[:4]}")
    errors = [_prove_one(output, written[output.spec.name]) for output in plan.outputs]
    return {
        "tensors": len(errors),
        "copied": sum(output.is_copy for output in plan.outputs),
        "recomputed": len(plan.edited),
        "largest_error": max(errors, default=0.0),
        "seconds": time.perf_counter() - started,
    }


def _prove_one(output: Output, entry: TensorEntry) -> float:
    """The largest error of one tensor as a share of what is allowed; raises `CheckFailed` above 1."""
    if (entry.dtype, entry.shape) != (output.spec.dtype, output.spec.shape):
        raise CheckFailed(f"'{entry.name}' was written as {entry.dtype}{list(entry.shape)}")
    if output.is_copy and entry.read() != output.source.read():  # type: ignore[union-attr]
        raise CheckFailed(f"'{entry.name}' should be the base's, but its bytes differ")
    value = entry.load()
    if not is_finite(value):
        raise CheckFailed(f"'{entry.name}' holds NaN or Inf in the merged model")
    if output.is_copy:
        return 0.0
    error = _error(output, value)
    if not error <= 1.0:
        raise CheckFailed(f"'{entry.name}' deviates from base plus update by {error:.3g} times what rounding allows")
    return error


def _error(output: Output, value: torch.Tensor) -> float:
    start, edit = output.start.load(), output.edit
    if edit and edit.bias:
        expected = start.float() + edit.bias[1] * edit.bias[0].load().float()
        return _share(value, expected, torch.finfo(torch.float32).eps * (expected.abs() + start.float().abs()))
    if edit and edit.rows:
        expected = start.to(value.dtype, copy=True)
        expected[list(edit.indices)] = edit.rows.load().to(value.dtype)
        return 0.0 if torch.equal(value, expected) else float("inf")
    if edit and edit.lora:
        return _lora_error(output, start, value)
    if edit and edit.scaling:
        return _scaling_error(output, start, value, edit.scaling.vector.load())
    return 0.0 if torch.equal(value, start.to(value.dtype)) else float("inf")


def _lora_error(output: Output, start: torch.Tensor, value: torch.Tensor) -> float:
    update = load_update(output)
    a, b = update.a.float(), update.b.float()
    if output.transposed:
        start, value = start.T, value.T
    # |Σ b·a| ≤ ‖b‖·‖a‖ bounds the terms of every product, and so the error of its sum in any order.
    reach = abs(update.scale) * b.norm(dim=1) * a.norm(dim=0).max()
    slack = torch.finfo(torch.float32).eps * (a.shape[0] + 64)
    worst = 0.0
    for rows in blocks(*value.shape):
        expected = torch.addmm(start[rows].float(), b[rows], a, alpha=update.scale)
        room = slack * (expected.abs() + reach[rows, None])
        if update.magnitude is not None:
            factor = (update.magnitude[rows].float() / expected.norm(dim=1))[:, None]
            expected, room = expected * factor, room * factor.abs()
        worst = max(worst, _share(value[rows], expected, room))
    return worst


def _scaling_error(output: Output, start: torch.Tensor, value: torch.Tensor, vector: torch.Tensor) -> float:
    """In fp64, which holds the product of two fp32 values exactly; the merge rounds it to fp32 first."""
    shape = [1] * start.dim()
    shape[output.scaled_dimension] = -1
    factors = torch.atleast_2d(vector.double().reshape(shape).expand_as(start))
    start, value = torch.atleast_2d(start, value)
    worst = 0.0
    for rows in blocks(*value.shape):
        expected = start[rows].double() * factors[rows]
        worst = max(worst, _share(value[rows], expected, torch.finfo(torch.float32).eps * expected.abs()))
    return worst


def _share(value: torch.Tensor, expected: torch.Tensor, room: torch.Tensor) -> float:
    """Largest of |value − expected| / (half a unit in the last place + `room`)."""
    info = torch.finfo(value.dtype)
    allowed = expected.abs() * (info.eps / 2) + info.smallest_normal * info.eps + room
    return float(((value.float() - expected).abs() / allowed).max())
