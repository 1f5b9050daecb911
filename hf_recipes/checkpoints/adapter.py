"""Whether a PEFT adapter is whole: its configuration, both halves of every pair, and, given the base, its shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_recipes.checkpoints.findings import Findings, some
from hf_recipes.checkpoints.scan import FileScan, TensorFacts
from hf_recipes.core.files import read_json
from hf_recipes.core.tensors import DamagedFile, iter_entries

CONFIG_NAME = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_HALF = re.compile(r"^(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<half>[AB])(?P<rest>\..+)?$")
_PREFIX = "base_model.model."


def is_half(tensor: str, half: str) -> bool:
    """Whether `tensor` is a LoRA matrix of the given half, ``A`` or ``B``."""
    match = _HALF.match(tensor)
    return match is not None and match["half"] == half and not (match["rest"] or "").endswith(".bias")


def check_adapter(folder: Path, prefix: str, inside: Mapping[str, FileScan], findings: Findings) -> None:
    """Check the adapter in one folder, if there is one; `inside` are the folder's files by name."""
    weights = next((name for name in _WEIGHTS if name in inside), None)
    sharded = any(name.startswith("adapter_model-") for name in inside)
    if CONFIG_NAME not in inside:
        if weights or sharded:
            findings.problem(f"{prefix}{CONFIG_NAME}", "is missing: the adapter cannot be loaded without it")
        return
    if not weights and not sharded:
        findings.problem(f"{prefix}{_WEIGHTS[0]}", f"is missing, but {CONFIG_NAME} is there")
    config = read_json(folder / CONFIG_NAME) if not inside[CONFIG_NAME].damage else None
    if config is not None and (not isinstance(config, dict) or not config.get("peft_type")):
        findings.problem(f"{prefix}{CONFIG_NAME}", "names no peft_type")
        return
    tensors = {name: (file, facts) for file, scan in inside.items() for name, facts in (scan.tensors or {}).items()}
    if config and tensors:
        _check_pairs(prefix, {name: file for name, (file, _) in tensors.items()}, config, findings)
        _check_targets(prefix, tensors, config, findings)


def _check_pairs(prefix: str, tensors: Mapping[str, str], config: dict[str, Any], findings: Findings) -> None:
    halves: dict[tuple[str, ...], dict[str, str]] = {}
    for name in tensors:
        if (match := _HALF.match(name)) and not (match["rest"] or "").endswith(".bias"):
            halves.setdefault((match["module"], match["kind"] or "", match["rest"] or ""), {})[match["half"]] = name
    for found in halves.values():
        if len(found) == 1:
            ((half, name),) = found.items()
            findings.problem(f"{prefix}{tensors[name]}", f"stands without its lora_{'BA'[half == 'B']}", name)
    if config.get("use_dora"):
        for module, _, _ in halves:
            if not any(name.startswith(f"{module}.lora_magnitude_vector") for name in tensors):
                missing = f"{module}.lora_magnitude_vector"
                findings.problem(f"{prefix}{_WEIGHTS[0]}", "is missing, though the adapter is DoRA", missing)


def _check_targets(prefix: str, tensors: Mapping[str, Any], config: dict[str, Any], findings: Findings) -> None:
    targets = config.get("target_modules")
    if config["peft_type"] != "LORA" or not isinstance(targets, list) or not targets:
        return
    absent = [target for target in targets if not any(f".{target}." in f".{name}." for name in tensors)]
    if len(absent) == len(targets):
        findings.problem(f"{prefix}{CONFIG_NAME}", f"targets {some(absent)}, but no tensor of the adapter is of these")
    elif absent:
        findings.note(f"{prefix}{CONFIG_NAME} targets {some(absent)} too, for which the adapter has no tensors.")


def check_against_base(base: Path, scans: Mapping[str, FileScan], findings: Findings) -> None:
    """Check that each LoRA pair fits a matrix of the base model in `base`; only headers are read.

    Quantised (packed) base tensors have other shapes and are passed over.
    """
    try:
        shapes = {entry.name: entry.shape for entry in iter_entries(base) if entry.dtype not in ("U8", "I8")}
    except (DamagedFile, OSError, ValueError, KeyError) as error:
        findings.problem(str(base), f"the base cannot be read ({error})")
        return
    found = 0
    for file, scan in scans.items():
        pairs = _pairs(scan.tensors or {})
        for module, (inputs, outputs) in pairs.items():
            shape = shapes.get(f"{module}.weight")
            found += shape is not None
            if shape is not None and shape not in ((outputs, inputs), (inputs, outputs)):
                what = f"adds a {outputs} × {inputs} matrix, but the base has {list(shape)} there"
                findings.problem(file, what, f"{_PREFIX}{module}")
        if pairs and not found:
            findings.problem(file, f"none of its {len(pairs)} modules is in {base}: it belongs to another base")


def _pairs(tensors: Mapping[str, TensorFacts]) -> dict[str, tuple[int, int]]:
    """Module name in the base → (inputs, outputs), for plain two-dimensional pairs."""
    pairs = {}
    for name, facts in tensors.items():
        if name.endswith(".lora_A.weight") and len(facts.shape) == 2:
            other = tensors.get(name.replace(".lora_A.", ".lora_B."))
            if other and len(other.shape) == 2:
                module = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
                pairs[module] = (facts.shape[1], other.shape[0])
    return pairs
