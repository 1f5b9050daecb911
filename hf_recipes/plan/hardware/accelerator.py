"""Accelerators as a user names them: by catalogue key, with figures of their own, or wholly their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hf_recipes.core.accelerators import Accelerator, find_accelerator
from hf_recipes.core.errors import UserError, nearest

__all__ = ["Accelerator", "choose_accelerators", "custom_accelerator", "parse_bytes", "with_memory"]

_UNITS = {"": 1.0, **{f"{prefix}b": 1000.0**power for power, prefix in enumerate("kmgt", 1)}}
_UNITS |= {f"{prefix}ib": 1024.0**power for power, prefix in enumerate("kmgt", 1)} | {"b": 1.0}
# What an entry of one's own may hold, and the factor to plain units.
_FIGURES = {"bandwidth_gb": 1e9, "link_gb": 1e9, "host_link_gb": 1e9, "watts": 1.0}
_FIELDS = ("name", "memory", "tflops", "like", *_FIGURES)
_DTYPES = ("bfloat16", "float16", "float32", "tf32", "float8")
_SLOWEST_HOST_LINK = 15.75e9  # PCIe 3.0, 16 lanes


def parse_bytes(text: str | float) -> float:
    """Bytes of ``24GiB`` (2³⁰ each), ``24GB`` (10⁹ each) or a plain number.

    Raises:
        UserError: it is no size above 0, or has no unit where one must be meant.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]?i?b)?\s*", str(text).lower())
    unit = _UNITS.get(found[2] or "") if found else None
    if not found or unit is None or not 0 < float(found[1]) * unit < float("inf"):
        raise UserError(f"'{text}' is no size of memory: write it like 24GiB or 80GB.")
    if not found[2] and float(found[1]) < 1e6:
        raise UserError(f"'{text}' bytes are meant? Write a size of memory with its unit, like {text}GiB.")
    return float(found[1]) * unit


def choose_accelerators(names: str, memory: str | float | None = None) -> tuple[Accelerator, ...]:
    """Those of a list like ``h100,a100-80g,my_card.yaml``.

    Args:
        names: keys or aliases of the catalogue, or YAML files as `custom_accelerator` takes them, parted by commas.
        memory: what each of them has, where it is not the catalogue's.

    Raises:
        UserError: a name is unknown or there is none; a file is none of an accelerator.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UserError("No accelerator named: write one or several, as in h100,a100-80g,rtx-4090.")
    found = [
        _read(Path(name)) if name.endswith((".yaml", ".yml", ".json")) else find_accelerator(name) for name in wanted
    ]
    return tuple(found if memory is None else (with_memory(each, memory) for each in found))


def _read(path: Path) -> Accelerator:
    try:
        figures = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"--gpu: '{path}' cannot be read as YAML ({type(error).__name__}): name a file with name, memory, tflops "
            "and the like, or a key of the catalogue."
        ) from error
    if not isinstance(figures, dict):
        raise UserError(f"--gpu: '{path}' holds no fields: write one a line, such as memory: 24GiB.")
    try:
        return custom_accelerator({"name": path.stem, **figures})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def with_memory(accelerator: Accelerator, memory: str | float) -> Accelerator:
    """The same device with so much memory for programs (a slice, a card with another amount)."""
    return replace(accelerator, memory_bytes=parse_bytes(memory), memory_source="given")


def custom_accelerator(figures: Mapping[str, Any]) -> Accelerator:
    """A device that is not in the catalogue, from an entry such as YAML holds.

    Args:
        figures: ``name``; ``memory`` (``24GiB``); ``tflops``, dense, one number for 16 bits or by dtype;
            ``bandwidth_gb`` of its memory, in GB/s; where known ``link_gb`` (both directions), ``host_link_gb`` (one
            direction) and ``watts``. ``like``: a key of the catalogue whose figures stand for those not given.

    Raises:
        UserError: a field is unknown, missing or no number.
    """
    for field in map(str, figures):
        if field not in _FIELDS:
            raise UserError(f"Accelerator: unknown field '{field}'{nearest(field, _FIELDS)}; known: {_known()}.")
    like = find_accelerator(str(figures["like"])) if "like" in figures else None
    if like is None and not {"memory", "tflops", "bandwidth_gb"} <= figures.keys():
        raise UserError("Accelerator: give memory, tflops and bandwidth_gb, or like: KEY of the catalogue.")
    name = str(figures.get("name", like.name if like else "accelerator"))
    base = like or Accelerator("", name, 0.0, 0.0, {}, 0.0, _SLOWEST_HOST_LINK, 0.0, "given", "")
    changes: dict[str, Any] = {
        field.removesuffix("_gb"): _number(field, figures[field], above_zero=field == "bandwidth_gb") * factor
        for field, factor in _FIGURES.items()
        if field in figures
    }
    if "tflops" in figures:
        changes["flops"] = {**base.flops, **_flops(figures["tflops"])}
    if "memory" in figures:
        changes |= {"memory_bytes": parse_bytes(figures["memory"]), "memory_source": "given"}
    key = re.sub(r"\W+", "-", name.lower()).strip("-")
    source = f"given, the rest from {base.source}" if like else "given"
    return replace(base, key=key, name=name, source=source, **changes)


def _known() -> str:
    return ", ".join(_FIELDS)


def _flops(tflops: Any) -> dict[str, float]:
    if not isinstance(tflops, Mapping):
        rate = _number("tflops", tflops, above_zero=True) * 1e12
        return {"bfloat16": rate, "float16": rate}
    known = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8"}
    rates = {known.get(str(dtype), str(dtype)): value for dtype, value in tflops.items()}
    for dtype in rates:
        if dtype not in _DTYPES:
            raise UserError(f"Accelerator: tflops: unknown dtype '{dtype}'; known: {', '.join(_DTYPES)}.")
    return {dtype: _number(f"tflops.{dtype}", value, above_zero=True) * 1e12 for dtype, value in rates.items()}


def _number(field: str, value: Any, *, above_zero: bool = False) -> float:
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < float("inf") or (above_zero and number == 0):
        raise UserError(f"Accelerator: {field}: '{value}' is no number {'above 0' if above_zero else 'of 0 or more'}.")
    return number
