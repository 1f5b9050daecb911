"""Whether a PEFT adapter is whole: its configuration, and both halves of every pair."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hf_recipes.checkpoints.verification.findings import Findings, some
from hf_recipes.checkpoints.verification.scan_facts import FileScan

CONFIG_NAME = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_HALF = re.compile(r"^(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<half>[AB])(?P<rest>\..+)?$")


def is_half(tensor: str, half: str) -> bool:
    """Whether `tensor` is a LoRA matrix of the given half, ``A`` or ``B``."""
    match = _HALF.match(tensor)
    return match is not None and match["half"] == half and not (match["rest"] or "").endswith(".bias")


def check_adapter(prefix: str, inside: Mapping[str, FileScan], findings: Findings) -> None:
    """Check the adapter in one folder, if there is one; `inside` are the folder's files by name."""
    weights = next((name for name in _WEIGHTS if name in inside), None)
    sharded = any(name.startswith("adapter_model-") for name in inside)
    if CONFIG_NAME not in inside:
        if weights or sharded:
            findings.problem(f"{prefix}{CONFIG_NAME}", "is missing: the adapter cannot be loaded without it")
        return
    if not weights and not sharded:
        findings.problem(f"{prefix}{_WEIGHTS[0]}", f"is missing, but {CONFIG_NAME} is there")
    config = inside[CONFIG_NAME].content
    if not isinstance(config, dict) or not isinstance(config.get("peft_type"), str):
        if not inside[CONFIG_NAME].damage:
            findings.problem(f"{prefix}{CONFIG_NAME}", "names no peft_type")
        return
    tensors = {name: (file, facts) for file, scan in inside.items() for name, facts in (scan.tensors or {}).items()}
    if tensors:
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
