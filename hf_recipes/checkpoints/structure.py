"""Whether the files of a checkpoint fit together: index and shards, adapter and configuration. No values are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from hf_recipes.checkpoints.adapter import check_adapter
from hf_recipes.checkpoints.findings import Findings
from hf_recipes.checkpoints.scan import FileScan, TensorFacts
from hf_recipes.core.files import read_json

_SHARD = re.compile(r"^(model|adapter_model)-(\d{5})-of-(\d{5})\.safetensors$")
# How other savers than safetensors name weights: torch's own, FSDP's, DeepSpeed's.
_OTHER_WEIGHTS = re.compile(r"(^|/)(pytorch_model|adapter_model)[^/]*\.bin$|\.distcp$|(^|/)global_step\d+/[^/]+\.pt$")


def has_weights(files: Mapping[str, FileScan]) -> bool:
    """Whether any file holds weights, in whatever format."""
    return any(name.endswith(".safetensors") or _OTHER_WEIGHTS.search(name) for name in files)


def check_structure(directory: Path, scans: Mapping[str, FileScan], findings: Findings) -> None:
    """Add what is wrong with the form of each file and with the files as a set."""
    for name, scan in scans.items():
        if scan.damage:
            findings.problem(name, scan.damage)
        for tensor, facts in (scan.tensors or {}).items():
            if 0 in facts.shape:
                what = f"has shape {list(facts.shape)}, no values: it was saved while sharded over ranks (ZeRO-3, FSDP)"
                findings.problem(name, what, tensor)
        if scan.tensors == {}:
            findings.problem(name, "holds no tensors")
    for folder in sorted({str(PurePosixPath(name).parent) for name in scans if name.endswith(".safetensors")} | {"."}):
        inside = {PurePosixPath(name).name: scan for name, scan in scans.items() if _folder(name) == folder}
        prefix = "" if folder == "." else f"{folder}/"
        for stem in ("model", "adapter_model"):
            _check_shards(directory, prefix, stem, inside, findings)
        check_adapter(directory / folder, prefix, inside, findings)
    if not has_weights(scans):
        findings.problem(".", "holds no weights (no .safetensors, .bin or .distcp file)")


def _folder(name: str) -> str:
    return str(PurePosixPath(name).parent)


def _check_shards(directory: Path, prefix: str, stem: str, inside: Mapping[str, FileScan], findings: Findings) -> None:
    index_name = f"{stem}.safetensors.index.json"
    shards = {name for name in inside if (match := _SHARD.match(name)) and match.group(1) == stem}
    if index_name not in inside:
        if shards:
            findings.problem(f"{prefix}{index_name}", f"is missing, but there are {len(shards)} shards")
        return
    if f"{stem}.safetensors" in inside:
        findings.problem(f"{prefix}{stem}.safetensors", f"stands beside {index_name}: two models in one directory")
    if inside[index_name].damage:
        return
    weight_map = read_json(directory / prefix / index_name)
    weight_map = weight_map.get("weight_map") if isinstance(weight_map, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        findings.problem(f"{prefix}{index_name}", "has no weight_map of tensor names to file names")
        return
    _check_index(prefix, index_name, weight_map, inside, findings)
    for surplus in sorted(shards - set(weight_map.values())):
        findings.problem(f"{prefix}{surplus}", f"is a shard that {index_name} does not name")


def _check_index(
    prefix: str, index_name: str, weight_map: dict[str, str], inside: Mapping[str, FileScan], findings: Findings
) -> None:
    for shard in sorted(set(weight_map.values())):
        promised = {tensor for tensor, file in weight_map.items() if file == shard}
        if shard not in inside:
            findings.problem(f"{prefix}{shard}", f"is missing: {index_name} puts {len(promised)} tensors there")
            continue
        tensors: Mapping[str, TensorFacts] | None = inside[shard].tensors
        if tensors is None:  # damaged, and told
            continue
        for tensor in sorted(promised - set(tensors)):
            findings.problem(f"{prefix}{shard}", f"is missing: {index_name} puts it there", tensor)
        for tensor in sorted(set(tensors) - promised):
            findings.problem(f"{prefix}{shard}", f"is not where {index_name} puts it", tensor)
