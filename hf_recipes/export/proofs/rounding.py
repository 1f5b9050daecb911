"""What rounding weights to a dtype costs a model: the same rounding once more, at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from hf_recipes.export.output import Output
from hf_recipes.export.plan import MergePlan

_ELEMENTS = 1 << 22  # at a time, so that the noise of a large tensor takes little memory
_MANTISSA_BITS = {"F64": 53, "F32": 24, "F16": 11, "BF16": 8}
Rounded = Mapping[str, Sequence[int] | None]


def rounded_tensors(plan: MergePlan) -> dict[str, list[int] | None]:
    """The tensors of a merged model that were rounded, by name: all of it (None), or the rows named.

    Those that an edit computed, and those cast to fewer bits; not those copied, or cast without loss.
    """
    rounded = {output.spec.name: _rounded_rows(output) for output in plan.outputs}
    return {name: rows for name, rows in rounded.items() if rows is None or rows}


def _rounded_rows(output: Output) -> list[int] | None:
    edit, start = output.edit, output.start
    bits, target = (_MANTISSA_BITS.get(dtype, 0) for dtype in (start.dtype, output.spec.dtype))
    if bits > target or getattr(output, "group", None) is not None:
        return None
    if edit and edit.rows and not (edit.lora or edit.scaling or edit.bias):
        return list(edit.indices)
    return None if edit and edit.is_trained and not edit.value else []


def half_unit(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half a unit in the last place of `dtype` at each value: the largest error of rounding to it.

    Values of ``[2^e, 2^(e+1))`` lie ``2^e·eps`` apart, those below the smallest normal number as at that number.
    """
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(values.float())  # value = m·2^exponent, ½ ≤ |m| < 1
    apart = torch.ldexp(torch.full_like(values, info.eps, dtype=torch.float32), exponent - 1)
    apart = torch.where(values == 0, 0.0, apart)  # frexp(0) has the exponent of ½
    return apart.clamp_min(info.smallest_normal * info.eps) / 2


def add_rounding_noise(tensors: Mapping[str, torch.Tensor], rounded: Rounded, dtype: torch.dtype, seed: int) -> None:
    """Add to the fp32 values of `tensors`, in place, errors like those of rounding to `dtype`: uniform in ± half a unit
    in the last place. A tensor known by two names gets them once. For fp32 it is a whole unit: half a one would be
    rounded away again.

    Raises:
        KeyError: a name in `rounded` is none of `tensors`.
    """
    done: set[int] = set()
    generators: dict[Any, torch.Generator] = {}
    units = 2 if dtype == torch.float32 else 1
    for name in sorted(rounded):
        tensor, rows = tensors[name], rounded[name]
        if tensor.data_ptr() in done:
            continue
        done.add(tensor.data_ptr())
        generator = generators.setdefault(tensor.device, torch.Generator(tensor.device).manual_seed(seed))
        for part in _parts(tensor, rows):
            noise = torch.rand(part.shape, generator=generator, device=part.device) * 2 - 1
            part += noise * (units * half_unit(part, dtype))


def _parts(tensor: torch.Tensor, rows: Sequence[int] | None) -> Iterable[torch.Tensor]:
    """Views that cover the whole tensor, or its `rows`."""
    if rows is not None:
        return [tensor[row] for row in rows]
    return tensor.view(-1).split(_ELEMENTS) if tensor.is_contiguous() else [tensor]
