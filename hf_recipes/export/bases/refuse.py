"""Bases whose weights an update cannot be added to, refused by their config alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*\n", re.DOTALL)
_CARD_BASE = re.compile(r"^base_model:[ \t]*(?:\n[ \t]*-[ \t]*)?['\"]?([^\s'\"\[\],]+)", re.MULTILINE)


def quantisation_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The ``quantization_config`` of a config.json, wherever a composite config keeps it; empty without one."""
    nested = config.get("text_config") or {}
    return dict(config.get("quantization_config") or nested.get("quantization_config") or {})


def bitsandbytes_bits(quantisation: Mapping[str, Any]) -> int | None:
    """4 or 8 for weights that bitsandbytes packed, else None."""
    method = quantisation.get("quant_method")
    if str(method or "bitsandbytes").lower().removeprefix("quantizationmethod.") not in (
        "bitsandbytes",
        "bits_and_bytes",
    ):
        return None
    return 4 if quantisation.get("load_in_4bit") else 8 if quantisation.get("load_in_8bit") else None


def refuse_quantised(base: Path | str, config: Mapping[str, Any], originals: Iterable[str] = ()) -> None:
    """Raise `UserError` for GPTQ, AWQ, fp8 and all other quantised weights but bitsandbytes'.

    Args:
        base: directory or Hub name.
        config: its config.json.
        originals: names that the adapter gives for its base, one of which may be the 16-bit model.
    """
    quantisation = quantisation_of(config)
    if not quantisation or bitsandbytes_bits(quantisation):
        return
    kind = str(quantisation.get("quant_method") or "unknown").upper()
    named = [name for name in [*_named_by(base, config), *originals] if name and not _same(name, base)]
    original = f" ('{named[0]}', it seems)" if named else ""
    raise UserError(
        f"The base '{base}' is {kind}-quantised, and an update cannot be added to such weights: give the 16-bit "
        f"model it was made from{original} with --base."
    )


def _named_by(base: Path | str, config: Mapping[str, Any]) -> list[str]:
    """The original, as the model card's front matter or the config names it."""
    names = []
    card = Path(base) / "README.md"
    if card.is_file() and (matter := _FRONT_MATTER.match(card.read_text(encoding="utf-8", errors="replace"))):
        names += [match[1] for match in _CARD_BASE.finditer(matter[1])]
    recorded = config.get("_name_or_path")
    return [*names, *([recorded] if isinstance(recorded, str) else [])]


def _same(name: str, base: Path | str) -> bool:
    """Whether a name only means the quantised model itself: its directory, or its snapshot in the Hub's cache."""
    cached = "models--" + name.replace("/", "--")
    return Path(name) == Path(base) or str(base).startswith(f"{name}@") or cached in Path(base).parts
