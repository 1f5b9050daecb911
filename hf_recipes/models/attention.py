"""Whether the attention that a recipe names can run here."""

from __future__ import annotations

from importlib.util import find_spec

from hf_recipes.core.errors import UserError

NO_FLASH_ATTENTION = (
    "attn_implementation: flash attention needs the package flash-attn, and a GPU: install it, or write "
    "attn_implementation: sdpa."
)
# Of versions 2 and 4, and 3; transformers also takes it from the Hub by `kernels`, and from Ascend's own package.
_SOURCES = ("flash_attn", "flash_attn_interface", "kernels", "torch_npu")


def check_attention(implementation: str | None) -> None:
    """Refuse flash attention where nothing is installed that has it, before anything is read or loaded.

    Raises:
        UserError: so it is.
    """
    if (implementation or "").startswith("flash_attention") and not any(find_spec(source) for source in _SOURCES):
        raise UserError(NO_FLASH_ATTENTION)
