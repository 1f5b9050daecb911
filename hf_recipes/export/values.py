"""The value of one tensor of the merged model: what its edit says, loaded and handed to the algebra."""

from __future__ import annotations

import torch

from hf_recipes.export.adapter import Edit
from hf_recipes.export.algebra import LoraUpdate, merge_bias, merge_lora, merge_scaling, put_rows
from hf_recipes.export.plan import Output


def merged_value(output: Output, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor to write: `source` (the base's, loaded) with the edit applied, in `dtype`."""
    edit = output.edit or Edit()
    start = source if output.start is output.source else output.start.load()
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
    pair = output.edit.lora
    magnitude = pair.magnitude.load() if pair.magnitude else None
    return LoraUpdate(pair.a.load(), pair.b.load(), pair.scale, output.transposed, magnitude)
