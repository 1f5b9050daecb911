"""The value of one tensor of the merged model: what its edit says, loaded and handed to the algebra."""

from __future__ import annotations

import torch

from hf_recipes.export.algebra import (
    LoraUpdate,
    delta,
    merge_bias,
    merge_change,
    merge_lora,
    merge_scaling,
    put_rows,
    scaling_factors,
)
from hf_recipes.export.combination import Summed, times
from hf_recipes.export.edits import Edit
from hf_recipes.export.experts import expected_experts, merge_experts
from hf_recipes.export.output import Output
from hf_recipes.export.pairs import LoraPair, StoredTensor
from hf_recipes.export.task_arithmetic import combine, expected_combination


def merged_value(output: Output, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor to write: `source` (the base's, loaded) with the edit applied, in `dtype`."""
    edit = output.edit or Edit()
    start = source if output.start is output.source else output.start.load()
    if edit.experts:
        return merge_experts(start, edit.experts, dtype)
    if edit.combined:
        return merge_change(start, combine(load_task_tensors(output), edit.combined), dtype)
    if edit.lora:
        return merge_lora(start, load_update(output), dtype)
    if edit.scaling:
        return merge_scaling(start, edit.scaling.vector.load(), output.scaled_dimension, dtype)
    if edit.bias:
        return merge_bias(start, edit.bias[0].load(), edit.bias[1], dtype)
    if edit.rows:
        return put_rows(start, edit.rows.load(), edit.indices, dtype)
    return start.to(dtype)


def load_update(output: Output) -> LoraUpdate:
    """The LoRA update of an output, read from disk."""
    assert output.edit and output.edit.lora, output.spec.name
    return _load_pair(output.edit.lora, output.transposed)


def _load_pair(pair: LoraPair, transposed: bool) -> LoraUpdate:
    magnitude = pair.magnitude.load() if pair.magnitude else None
    return LoraUpdate(pair.a.load(), pair.b.load(), pair.scale, transposed, magnitude)


def load_task_tensors(output: Output) -> list[torch.Tensor]:
    """The updates to be combined, each whole, in fp32."""
    assert output.edit and output.edit.combined, output.spec.name
    return [
        delta(_load_pair(update, output.transposed)) if isinstance(update, LoraPair) else times(*update)
        for update in output.edit.combined.updates
    ]


_EPS = torch.finfo(torch.float32).eps


def expected_value(output: Output, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The value of `merged_value` by another route, in fp64, and the room to leave for its fp32 sums, both of the
    tensor's shape. `start` is what the edit is applied to, as stored."""
    edit = output.edit or Edit()
    if edit.experts:
        return expected_experts(start, edit.experts)
    wide = start.double()
    if edit.combined:
        change, room = expected_combination(_expected_task_tensors(output), edit.combined)
        return wide + change, room + _EPS * (wide.abs() + 2 * change.abs())
    if edit.lora:
        return _expected_lora(wide, load_update(output))
    if edit.scaling:
        expected = wide * scaling_factors(wide.shape, edit.scaling.vector.load().double(), output.scaled_dimension)
        return expected, _EPS * expected.abs()
    if edit.bias:
        change, room = _expected_bias(*edit.bias)
        return wide + change, room + _EPS * (wide.abs() + change.abs())
    if edit.rows:
        wide[list(edit.indices)] = edit.rows.load().double()
    return wide, torch.zeros_like(wide)


def _expected_bias(vector: StoredTensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(vector, Summed):
        loaded = [part.load().double() * factor for part, factor in zip(vector.parts, vector.factors, strict=True)]
    else:
        loaded = [vector.load().double()]
    terms = torch.stack(loaded) * scale
    return terms.sum(dim=0), _EPS * (len(loaded) + 1) * terms.abs().sum(dim=0)


def _expected_task_tensors(output: Output) -> list[tuple[torch.Tensor, torch.Tensor]]:
    assert output.edit and output.edit.combined, output.spec.name
    zero = torch.zeros(output.spec.shape, dtype=torch.float64)
    return [
        _expected_lora(zero, _load_pair(update, output.transposed))
        if isinstance(update, LoraPair)
        else _expected_bias(*update)
        for update in output.edit.combined.updates
    ]


def _expected_lora(start: torch.Tensor, update: LoraUpdate) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = update.a.double().flatten(1), update.b.double().flatten(1)
    by_output = start.T if update.transposed else start.flatten(1)
    expected = by_output + update.scale * (b @ a)
    # |Σ b·a| ≤ ‖b‖·‖a‖ bounds the terms of every product, and so the error of its sum in any order.
    reach = abs(update.scale) * b.norm(dim=1)[:, None] * a.norm(dim=0)[None]
    room = _EPS * (a.shape[0] + 64) * (expected.abs() + reach)
    if update.magnitude is not None:
        factor = (update.magnitude.double().reshape(-1) / expected.norm(dim=1))[:, None]
        expected, room = expected * factor, room * factor.abs()
    if update.transposed:
        return expected.T, room.T
    return expected.reshape(start.shape), room.reshape(start.shape)
