"""Both choices of base values for a QLoRA adapter, merged and held against what was trained; nothing is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import read_config
from hf_recipes.export.bases.find import find_adapter, find_base
from hf_recipes.export.bases.identity import recorded_run
from hf_recipes.export.bases.trained_quantization import need_quantization
from hf_recipes.export.merge import merge_adapter

if TYPE_CHECKING:
    from hf_recipes.export.bases.base_values import BaseValues
    from hf_recipes.export.proofs.logits import Prompts, Rows

_VALUES: Sequence[BaseValues] = ("original", "dequantized")


def compare_parity(
    adapter: Path | str,
    *,
    base: Path | str | None = None,
    beside: Path,
    dtype: str,
    quantization: str | None = None,
    allow_other_base: bool = False,
    rows: Rows = (),
    labels: Rows = (),
    prompts: Prompts = (),
) -> dict[str, Any]:
    """Merge into ``original`` and into ``dequantized`` base values, in a temporary place, and compare both with the
    adapter on the quantised base that training saw.

    Args:
        adapter: as for `merge_adapter`.
        base: likewise.
        dtype: likewise.
        quantization: likewise.
        allow_other_base: likewise.
        beside: the merges are made, and removed again, in the directory that would hold this one.
        rows: as in `compare_base_values`.
        labels: likewise.
        prompts: likewise.

    Returns:
        What `compare_base_values` gives.

    Raises:
        UserError: it is not known how training quantised, or the base is stored quantised: there is one choice only.
    """
    from hf_recipes.export.proofs.logits import compare_base_values

    place = find_adapter(adapter)
    run = recorded_run(place)
    settings = need_quantization(run, quantization)
    found = find_base(read_config(place), base, run.get("base_model") or {})
    if not found.is_dir():
        raise UserError(f"--parity: '{found}' is no 16-bit model directory: there is nothing to compare.")
    beside.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=beside.absolute().parent, prefix=".parity.") as scratch:
        merged: dict[str, Path] = {}
        for values in _VALUES:
            merged[values] = Path(scratch) / values
            merge_adapter(
                place,
                base=base,
                output=merged[values],
                dtype=dtype,
                proof="off",
                base_values=values,
                quantization=settings if values == "dequantized" else None,
                allow_other_base=allow_other_base,
            )
        return compare_base_values(place, found, merged, settings, rows=rows, labels=labels, prompts=prompts)
