"""The names people write for dtypes, understood everywhere one is asked for."""

from __future__ import annotations

from hf_recipes.core.errors import UserError, nearest

_ALIASES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
    "auto": "auto",
}
SHORT_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def canonical_dtype_name(name: str, key: str = "dtype", known: str = "bf16, fp16, fp32 or auto") -> str:
    """Map any common spelling (``bf16``, ``torch.bfloat16``, ``half`` …) to ``bfloat16|float16|float32|auto``.

    Raises:
        UserError: the name is none of them; `key` says where it was written.
    """
    plain = str(name).lower().removeprefix("torch.")
    if plain not in _ALIASES:
        raise UserError(f"{key}: '{name}' is not a dtype{nearest(plain, _ALIASES)}: write {known}.")
    return _ALIASES[plain]
