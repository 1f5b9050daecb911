"""An adapter against its base, from headers alone: where the base lies, and whether the shapes fit together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from hf_recipes.checkpoints.verification.findings import Findings
from hf_recipes.checkpoints.verification.scan_facts import FileScan, TensorFacts
from hf_recipes.checkpoints.verification.tokenizer_fit import embedding_rows
from hf_recipes.core.bounded_json import parse_json
from hf_recipes.core.files import expanded
from hf_recipes.core.tensors import DamagedFile, entries_by_name

_PREFIX = "base_model.model."
_PACKED = ("U8", "I8", "I32")
_HUB_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_Shape = tuple[int, ...]


@dataclass(frozen=True)
class BaseShapes:
    """The tensors of a base model by name; packed (quantised) ones have no shape that could be compared."""

    directory: Path
    shapes: dict[str, _Shape | None]
    rows: int | None

    def of(self, module: str) -> tuple[str, _Shape | None] | None:
        """The name and shape of a module's weight. A base saved without its head has names one part shorter."""
        for name in (module, module.partition(".")[2], f"model.{module}", f"transformer.{module}"):
            for full in (f"{name}.weight", name):
                if name and full in self.shapes:
                    return full, self.shapes[full]
        return None


def find_known_base(directory: Path, config: Mapping[str, Any]) -> Path | None:
    """The directory of an adapter's base where this machine has it: the one its config names, the one that the run
    around it recorded, or that name's snapshot in the Hub's cache. Nothing is fetched."""
    recorded = _recorded_base(directory)
    revision = config.get("revision") or recorded.get("revision")
    for name in (config.get("base_model_name_or_path"), recorded.get("name_or_path")):
        if isinstance(name, str) and name and "\0" not in name:
            place = expanded(name)
            if (place / "config.json").is_file():
                return place
            if _HUB_NAME.match(name) and (cached := _in_hub_cache(name, revision)):
                return cached
    return None


def _recorded_base(directory: Path) -> dict[str, Any]:
    try:
        record = parse_json((directory.absolute().parent / "run.json").read_bytes())
        found = record["base_model"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # a broken run.json is told with the run
        return {}
    return found if isinstance(found, dict) else {}


def _in_hub_cache(name: str, revision: Any) -> Path | None:
    """By the cache's documented layout: asking the Hub's client costs half a second of imports."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    model = hub / f"models--{name.replace('/', '--')}"
    wanted = revision if isinstance(revision, str) and _HUB_NAME.match(revision) else "main"
    reference = model / "refs" / wanted
    try:
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else wanted
        snapshot = model / "snapshots" / commit
        return snapshot if (snapshot / "config.json").is_file() else None
    except (OSError, ValueError):
        return None


def read_base_shapes(base: Path) -> BaseShapes:
    """Read a base's headers.

    Raises:
        DamagedFile, OSError, ValueError, KeyError: it cannot be read; the message says why.
    """
    entries = entries_by_name(base)
    shapes = {name: None if entry.dtype in _PACKED else entry.shape for name, entry in entries.items()}
    rows = embedding_rows({name: TensorFacts(entry.dtype, entry.shape) for name, entry in entries.items()})
    return BaseShapes(base, shapes, rows)


def check_against_base(
    base: Path, files: Mapping[str, FileScan], findings: Findings, *, asked: bool
) -> BaseShapes | None:
    """Check that the tensors of an adapter fit the base in `base`; None where that cannot be read.

    Args:
        files: the files of the adapter's folder, by the name that problems are to give.
        asked: the user named the base; one found by itself that cannot be read, or has other names, is only noted.
    """
    tell: Callable[[str, str], None] = (
        findings.problem if asked else lambda file, what: findings.note(f"{file}: {what}.")
    )
    try:
        shapes = read_base_shapes(base)
    except (DamagedFile, OSError, ValueError, KeyError, TypeError) as error:
        tell(str(base), f"the base cannot be read ({error})")
        return None
    if not shapes.shapes:
        tell(str(base), "the base holds no safetensors, so the adapter is not checked against it")
        return None
    for file, scan in files.items():
        modules = _updates(scan.tensors or {})
        found = {module: place for module in modules if (place := shapes.of(module))}
        for module, (name, shape) in found.items():
            for tensor, fits, what in modules[module]:
                if shape is not None and not fits(shape):
                    findings.problem(file, f"{what}, but the base has {list(shape)} in '{name}'", tensor)
        kinds = {_NUMBER.sub("*", module): module for module in found}
        for module in sorted(set(modules) - set(found)):
            if kind := kinds.get(_NUMBER.sub("*", module)):  # others have other names in memory than in the file
                tensor = modules[module][0][0]
                findings.problem(file, f"is for a layer that the base in {base} lacks, unlike '{kind}'", tensor)
        if modules and not found:
            tell(file, f"none of its {len(modules)} modules is in {base}: it belongs to another base")
    return shapes


_Update = tuple[str, Callable[[_Shape], bool], str]


def _updates(tensors: Mapping[str, TensorFacts]) -> dict[str, list[_Update]]:
    """Module in the base → its updates: the tensor, whether a shape of the base fits, and what it is."""
    updates: dict[str, list[_Update]] = {}
    for name, facts in tensors.items():
        module, _, rest = name.removeprefix(_PREFIX).rpartition(".lora_A.weight")
        if module and not rest and (update := _pair(name, facts.shape, tensors)):
            updates.setdefault(module, []).append(update)
            continue
        for sign, describe in _OTHERS.items():
            module, found, rest = name.removeprefix(_PREFIX).rpartition(sign)
            if found and rest in ("", ".weight"):
                module = module.removesuffix(".token_adapter")
                fits, what = describe(facts.shape)
                updates.setdefault(module, []).append((name, fits, what))
    return updates


def _pair(name: str, shape: _Shape, tensors: Mapping[str, TensorFacts]) -> _Update | None:
    other = tensors.get(name.replace(".lora_A.", ".lora_B."))
    if other is None or len(shape) != 2 or len(other.shape) != 2:
        return None
    inputs, outputs = shape[1], other.shape[0]
    what = f"adds a {outputs} × {inputs} matrix"
    return name, lambda base: base in ((outputs, inputs), (inputs, outputs)), what


def _scales_one_side(shape: _Shape) -> tuple[Callable[[_Shape], bool], str]:
    return lambda base: prod(shape) in base, f"scales {prod(shape)} rows or columns"


def _embeds(shape: _Shape) -> tuple[Callable[[_Shape], bool], str]:
    return lambda base: shape[-1:] == base[:1], f"adds to {shape[-1] if shape else 0} tokens"


def _replaces_tokens(shape: _Shape) -> tuple[Callable[[_Shape], bool], str]:
    return lambda base: shape[-1:] == base[-1:], f"replaces rows of {shape[-1] if shape else 0} values"


_OTHERS: dict[str, Callable[[_Shape], tuple[Callable[[_Shape], bool], str]]] = {
    ".lora_magnitude_vector": _scales_one_side,
    ".ia3_l": _scales_one_side,
    ".lora_embedding_A": _embeds,
    ".trainable_tokens_delta": _replaces_tokens,
}
