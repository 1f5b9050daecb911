"""Whether the files of a checkpoint fit together: index and shards, adapter and configuration, tokenizer and
embedding. No values are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from hf_recipes.checkpoints.verification.adapter import check_adapter
from hf_recipes.checkpoints.verification.config_shapes import check_config
from hf_recipes.checkpoints.verification.findings import Findings, some
from hf_recipes.checkpoints.verification.scan_facts import FileScan, TensorFacts
from hf_recipes.checkpoints.verification.tokenizer_fit import check_tokenizer, embedding_rows
from hf_recipes.core.tensors import leaves

_SHARD = re.compile(r"^(model|adapter_model)-(\d{5})-of-(\d{5})\.safetensors$")
_NEVER_RESUMED = "training_args.bin"
# How other savers than safetensors name weights: torch's own, FSDP's, llama.cpp's, DeepSpeed's.
_OTHER_WEIGHTS = re.compile(
    r"(^|/)(pytorch_model|adapter_model)[^/]*\.bin$|\.distcp$|\.gguf$|(^|/)global_step\d+/[^/]+\.pt$"
)


def has_weights(files: Iterable[str]) -> bool:
    """Whether any file holds weights, in whatever format."""
    return any(name.endswith(".safetensors") or _OTHER_WEIGHTS.search(name) for name in files)


def check_structure(scans: Mapping[str, FileScan], findings: Findings, *, own: bool) -> None:
    """Add what is wrong with the form of each file and with the files as a set.

    Args:
        own: this run wrote the files: names in training_args.bin that no checkpoint usually holds (a subclass of
            `TrainingArguments`) are the user's own and noted; a resume does not load that file. In all others, and in
            files from elsewhere, they are problems.
    """
    for name, scan in scans.items():
        _check_form(name, scan, findings, own)
    for folder in sorted({_folder(name) for name in scans if name.endswith((".safetensors", ".json"))} | {"."}):
        inside = {PurePosixPath(name).name: scan for name, scan in scans.items() if _folder(name) == folder}
        prefix = "" if folder == "." else f"{folder}/"
        for stem in ("model", "adapter_model"):
            _check_shards(prefix, stem, inside, scans, findings)
        check_adapter(prefix, inside, findings)
        check_config(prefix, inside, findings)
        check_tokenizer(prefix, inside, embedding_rows(folder_tensors(inside)), findings)
    if not has_weights(scans):
        findings.problem(".", "holds no weights (no .safetensors, .bin, .distcp or .gguf file)")


def folder_tensors(inside: Mapping[str, FileScan]) -> dict[str, TensorFacts]:
    """All tensors of the files of one folder."""
    return {name: facts for scan in inside.values() for name, facts in (scan.tensors or {}).items()}


def _check_form(name: str, scan: FileScan, findings: Findings, own: bool) -> None:
    if scan.damage:
        findings.problem(name, scan.damage)
    if scan.note:
        findings.note(f"{name} {scan.note}.")
    for tensor, facts in (scan.tensors or {}).items():
        if 0 in facts.shape:
            what = f"has shape {list(facts.shape)}, no values: it was saved while sharded over ranks (ZeRO-3, FSDP)"
            findings.problem(name, what, tensor)
    if scan.tensors == {}:
        findings.problem(name, "holds no tensors")
    if scan.foreign and own and PurePosixPath(name).name == _NEVER_RESUMED:
        findings.note(f"{name} holds names that only this run's own code has: {some(list(scan.foreign))}.")
    elif scan.foreign:
        what = f"would run {some(list(scan.foreign))} when it is loaded, which no checkpoint needs: do not load it"
        findings.problem(name, what)


def _folder(name: str) -> str:
    return str(PurePosixPath(name).parent)


def _check_shards(
    prefix: str, stem: str, inside: Mapping[str, FileScan], scans: Mapping[str, FileScan], findings: Findings
) -> None:
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
    content = inside[index_name].content
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        findings.problem(f"{prefix}{index_name}", "has no weight_map of tensor names to file names")
        return
    _check_index(prefix, index_name, weight_map, scans, findings)
    for surplus in sorted(shards - set(weight_map.values())):
        findings.problem(f"{prefix}{surplus}", f"is a shard that {index_name} does not name")


def _check_index(
    prefix: str, index_name: str, weight_map: dict[str, str], scans: Mapping[str, FileScan], findings: Findings
) -> None:
    promised: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        promised.setdefault(shard, set()).add(tensor)
    for shard, names in sorted(promised.items()):
        if leaves(shard):
            what = f"puts {len(names)} tensors into '{shard}', outside its directory: do not load this model"
            findings.problem(f"{prefix}{index_name}", what)
            continue
        if f"{prefix}{shard}" not in scans:
            findings.problem(f"{prefix}{shard}", f"is missing: {index_name} puts {len(names)} tensors there")
            continue
        tensors = scans[f"{prefix}{shard}"].tensors
        if tensors is None:  # damaged, and told
            continue
        for tensor in sorted(names - set(tensors)):
            findings.problem(f"{prefix}{shard}", f"is missing: {index_name} puts it there", tensor)
        for tensor in sorted(set(tensors) - names):
            findings.problem(f"{prefix}{shard}", f"is not where {index_name} puts it", tensor)
