"""How a base was quantised while it was trained on: from the run's record, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.dtypes import SHORT_NAMES, canonical_dtype_name
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.export.bases.refuse import quantisation_of

KINDS = ("nf4", "fp4", "int8")
FLAG = "--quantization"
_FORM = f"{FLAG} nf4,double,bf16 (nf4, fp4 or int8; double if the scales were quantised too; the dtype of the weights)"


@dataclass(frozen=True)
class TrainedQuantization:
    """What bitsandbytes did to the linear layers of a 16-bit base when training loaded it.

    `kind` is ``nf4``, ``fp4`` or ``int8``; `dtype` (``bfloat16``, ``float16``, ``float32``) is what weights were cast
    to before they were quantised, which is also what they are dequantised to; `double` quantises the scales of 4-bit
    weights too. Blocks are of 64 weights, the only size transformers asks for. `skip` are the module names of
    ``llm_int8_skip_modules``; None leaves the choice to transformers.
    """

    kind: str
    dtype: str
    double: bool = False
    skip: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return ",".join([self.kind, *(["double"] if self.double else []), SHORT_NAMES[self.dtype]])

    def to_config(self) -> Any:
        """The same as a `transformers.BitsAndBytesConfig`."""
        import torch
        from transformers import BitsAndBytesConfig

        skip = None if self.skip is None else list(self.skip)
        if self.kind == "int8":
            return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skip)
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=self.kind,
            bnb_4bit_use_double_quant=self.double,
            bnb_4bit_compute_dtype=getattr(torch, self.dtype),
            llm_int8_skip_modules=skip,
        )


def parse_quantization(text: str) -> TrainedQuantization:
    """Read ``nf4,double,bf16``: the kind, ``double`` where it was used, and the dtype, in any order.

    Raises:
        UserError: a word is unknown, or kind or dtype is missing.
    """
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    kinds = [word for word in words if word in KINDS]
    double = "double" in words
    rest = [word for word in words if word not in KINDS and word != "double"]
    dtypes = [canonical_dtype_name(word, FLAG, "bf16, fp16 or fp32") for word in rest]
    if len(kinds) != 1 or len(dtypes) != 1 or dtypes[0] not in SHORT_NAMES:
        raise UserError(f"{FLAG}: '{text}' does not say how the base was quantised: write {_FORM}.")
    if double and kinds[0] == "int8":
        raise UserError(f"{FLAG}: int8 has no double quantisation: write int8,{SHORT_NAMES[dtypes[0]]}.")
    return TrainedQuantization(kinds[0], dtypes[0], double)


def recorded_quantization(run: Mapping[str, Any]) -> TrainedQuantization | None:
    """What the recipe in run.json says; None where the run did not quantise a 16-bit base, or there is no record."""
    recipe = run.get("recipe") or {}
    dtype = (run.get("precision") or {}).get("dtype")
    if recipe.get("method") != "qlora" or dtype not in SHORT_NAMES:
        return None
    if recipe.get("load_in_8bit"):
        return TrainedQuantization("int8", dtype)
    # Absent keys are TRL's defaults; those of this package's methods are written out in the record.
    return TrainedQuantization(
        str(recipe.get("bnb_4bit_quant_type") or "nf4"), dtype, bool(recipe.get("use_bnb_nested_quant", False))
    )


def need_quantization(run: Mapping[str, Any], given: str | TrainedQuantization | None) -> TrainedQuantization:
    """As given, else as recorded.

    Args:
        run: run.json beside the adapter; empty without one.
        given: the text after ``--quantization``, or what it stands for.

    Raises:
        UserError: neither says it, or the run was trained on a base that was not quantised, or not by the run.
    """
    if given is not None:
        return parse_quantization(given) if isinstance(given, str) else given
    recorded = recorded_quantization(run)
    if recorded is not None:
        _refuse_stored(run)
        return recorded
    method = (run.get("recipe") or {}).get("method")
    if method is not None and method != "qlora":
        raise UserError(
            f"The run trained with method: {method}, on the base as it is: there are no other base values to merge "
            "into or to compare with (--base-values dequantized, --parity)."
        )
    raise UserError(f"Nothing beside the adapter says how training quantised its base: give {_FORM}.")


def _refuse_stored(run: Mapping[str, Any]) -> None:
    """A recipe's settings say nothing of a base that was stored quantised: training then used it as it was."""
    name = (run.get("base_model") or {}).get("name_or_path")
    try:
        config = read_json(Path(str(name)) / "config.json")
    except (OSError, ValueError):
        return
    if quantisation_of(config):
        raise UserError(
            f"--base-values dequantized: the run trained on '{name}', which is stored quantised: merge into that one "
            f"(no --base), or give {_FORM}."
        )
