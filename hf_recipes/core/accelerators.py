"""The accelerators there are, as dated and sourced data (`accelerators.json`), found by key or by their driver's name.

Figures are dense (no sparsity) and, for products of 8 and 16 bits, with fp32 accumulation: half of what gaming cards
are printed with. Memory is what PyTorch tells as the total where that is known, which is less than the maker prints.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest

CATALOGUE_FILE = Path(__file__).with_name("accelerators.json")
_MAKERS = ("nvidia", "amd", "intel", "geforce", "tesla", "instinct")


@dataclass(frozen=True)
class Accelerator:
    """Figures of one device; dense, without sparsity.

    Attributes:
        key: as users write it (``h100``, ``a100-80g``, ``rtx-4090``).
        name: the maker's name.
        memory_bytes: usable by programs (the driver tells a little less than the maker prints).
        bandwidth: bytes a second of its memory.
        flops: dense FLOP/s by dtype (``bfloat16``, ``float16``, ``float32``, ``tf32``, ``float8``); absent: emulated,
            none or unpublished.
        link: bytes a second, both directions together, to its neighbours in a node; 0 without NVLink or the like.
        host_link: bytes a second to the host, one direction (PCIe).
        watts: board power.
        source: where the figures are from.
        date: when they were read, ISO.
        memory_source: whether `memory_bytes` is what PyTorch told, the maker's nominal GiB, given or measured.
    """

    key: str
    name: str
    memory_bytes: float
    bandwidth: float
    flops: dict[str, float]
    link: float
    host_link: float
    watts: float
    source: str
    date: str
    memory_source: str = "given"


@dataclass(frozen=True)
class _Entry:
    accelerator: Accelerator
    aliases: tuple[str, ...]
    device_name: str | None


def list_accelerators() -> tuple[Accelerator, ...]:
    """The whole catalogue, in its order."""
    return tuple(entry.accelerator for entry in _entries())


def find_accelerator(name: str) -> Accelerator:
    """The accelerator that a user names by key or alias, in whatever spelling (``RTX 4090``, ``a100_80GB``).

    Raises:
        UserError: nothing has this name, or several have; those near it are told.
    """
    wanted = _as_key(name)
    for entry in _entries():
        if wanted in (entry.accelerator.key, *entry.aliases):
            return entry.accelerator
    keys = [accelerator.key for accelerator in list_accelerators()]
    variants = [key for key in keys if wanted and key.startswith(f"{wanted}-")]
    if variants:
        raise UserError(f"Accelerator '{name}' comes in several kinds: write {' or '.join(variants)}.")
    raise UserError(
        f"Accelerator '{name}' is not in the catalogue{nearest(wanted, [*_names()])}: name a YAML file with its "
        "figures (memory: 24GiB, tflops: 100, bandwidth_gb: 900), or write one of " + ", ".join(keys) + "."
    )


def accelerator_of_device(device_name: str) -> Accelerator | None:
    """The accelerator by the name its driver tells (``NVIDIA A100-SXM4-80GB``); None for one that is not known.

    The whole name must be known: an ``RTX 4090 Laptop GPU`` or a slice of an H100 is another device.
    """
    words = " ".join(word for word in re.split(r"[\s\-_]+", device_name.lower()) if word not in _MAKERS)
    for entry in _entries():
        if entry.device_name and re.fullmatch(entry.device_name, words):
            return entry.accelerator
    return None


def _as_key(name: str) -> str:
    words = [word for word in re.split(r"[\s\-_]+", name.strip().lower()) if word and word not in _MAKERS]
    return re.sub(r"(\d)-?gi?b$", r"\1g", "-".join(words))


def _names() -> tuple[str, ...]:
    return tuple(name for entry in _entries() for name in (entry.accelerator.key, *entry.aliases))


@functools.cache
def _entries() -> tuple[_Entry, ...]:
    return tuple(_entry(raw) for raw in json.loads(CATALOGUE_FILE.read_text(encoding="utf-8")))


def _entry(raw: dict[str, Any]) -> _Entry:
    accelerator = Accelerator(
        key=raw["key"],
        name=raw["name"],
        memory_bytes=raw["memory_gib"] * 2.0**30,
        bandwidth=raw["bandwidth_gb"] * 1e9,
        flops={dtype: tflops * 1e12 for dtype, tflops in raw["tflops"].items()},
        link=raw["link_gb"] * 1e9,
        host_link=raw["host_link_gb"] * 1e9,
        watts=float(raw["watts"]),
        source=raw["source"],
        date=raw["date"],
        memory_source=raw["memory_source"],
    )
    return _Entry(accelerator, tuple(raw["aliases"]), raw["device_name"])
