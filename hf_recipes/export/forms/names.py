"""The forms one can ask for, as they are written on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.core.errors import UserError, nearest

Kind = Literal["adapter", "merged", "bnb", "gguf"]

MERGED = ("merged-bf16", "merged-fp16", "merged-fp32")
BNB_BITS = {"bnb-4bit": 4, "bnb-8bit": 8}
# Written by llama.cpp's converter itself; all others are quantised from its 16-bit file.
CONVERTED = ("f32", "f16", "bf16", "q8_0")
# Bits a weight of a matrix takes, blocks' scales included: what disk space is asked for. From the block sizes in ggml
# (`gguf.constants.GGML_QUANT_SIZES`); for the mixed K types the larger of their two types.
GGUF_BITS = {
    "f32": 32.0,
    "f16": 16.0,
    "bf16": 16.0,
    "q8_0": 8.5,
    "q6_k": 6.5625,
    "q5_1": 6.0,
    "q5_0": 5.5,
    "q5_k_m": 6.5625,
    "q5_k_s": 5.5,
    "q4_1": 5.0,
    "q4_0": 4.5,
    "q4_k_m": 6.5625,
    "q4_k_s": 5.5,
    "iq4_nl": 4.5,
    "iq4_xs": 4.25,
    "q3_k_l": 5.5,
    "q3_k_m": 5.5,
    "q3_k_s": 3.4375,
    "q2_k": 3.4375,
}
DEFAULT_GGUF = "q8_0"


@dataclass(frozen=True)
class Form:
    """A form: its `kind`, and the `variant` of it (``bf16`` … for merged, ``4bit`` or ``8bit``, a GGUF type)."""

    kind: Kind
    variant: str = ""

    @property
    def name(self) -> str:
        """As it is written: ``merged-bf16``, ``gguf:q8_0``."""
        separator = ":" if self.kind == "gguf" else "-"
        return f"{self.kind}{separator}{self.variant}" if self.variant else self.kind

    @property
    def folder(self) -> str:
        """The name of its directory: as `name`, without characters that file systems refuse."""
        return self.name.replace(":", "-")


def parse_forms(text: str) -> list[Form]:
    """Forms from a list with commas, each once, in the order given.

    Raises:
        UserError: a form or a type of GGUF that is not known, or none at all.
    """
    forms = [_parse(item.strip()) for item in text.split(",") if item.strip()]
    if not forms:
        raise UserError(f"--forms names no form: write some of {known_forms()}.")
    return list(dict.fromkeys(forms))


def known_forms() -> str:
    """All forms in words, for help and errors."""
    return f"adapter, {', '.join(MERGED)}, {', '.join(BNB_BITS)}, gguf:TYPE"


def _parse(item: str) -> Form:
    name, _, variant = item.lower().replace("gguf-", "gguf:", 1).partition(":")
    if name == "gguf":
        chosen = variant or DEFAULT_GGUF
        if chosen not in GGUF_BITS:
            raise UserError(
                f"--forms: '{chosen}' is no type of GGUF{nearest(chosen, GGUF_BITS)}: known are {', '.join(GGUF_BITS)}."
            )
        return Form("gguf", chosen)
    if name == "adapter" and not variant:
        return Form("adapter")
    if name in BNB_BITS and not variant:
        return Form("bnb", name.removeprefix("bnb-"))
    if name.startswith("merged-") and not variant:
        name = _merged_name(name)
    if name in MERGED and not variant:
        return Form("merged", name.removeprefix("merged-"))
    known = ["adapter", *MERGED, *BNB_BITS, "gguf"]
    raise UserError(f"--forms: '{item}' is no form{nearest(name, known)}: known are {known_forms()}.")


def _merged_name(name: str) -> str:
    """``merged-float16`` and the like, in the short spelling."""
    from hf_recipes.core.dtypes import SHORT_NAMES

    try:
        dtype = canonical_dtype_name(name.removeprefix("merged-"))
    except UserError:
        return name
    return f"merged-{SHORT_NAMES.get(dtype, dtype)}"
