"""Loads a checkpoint's tensors as a user of safetensors would, and compares them with what was in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from safetensors import SafetensorError, safe_open
from torch import Tensor

from hf_recipes.checkpoints.live import LiveSums
from hf_recipes.checkpoints.verification.findings import Findings
from hf_recipes.checkpoints.verification.scan import FileScan
from hf_recipes.core.tensors import torch_dtype


def check_reload(
    directory: Path, scans: Mapping[str, FileScan], findings: Findings, live: LiveSums | None = None
) -> None:
    """Load every tensor through safetensors, one at a time; with `live`, compare it with the model as it was saved."""
    stored: dict[str, set[str]] = {}
    for file, scan in scans.items():
        if scan.tensors is None:
            continue
        folder = str(PurePosixPath(file).parent)
        names = stored.setdefault(folder, set())
        try:
            for name, tensor in _load(directory / file):
                names.add(name)
                facts = scan.tensors.get(name)
                if not facts or facts.shape != tuple(tensor.shape) or torch_dtype(facts.dtype) != tensor.dtype:
                    findings.problem(file, "loads with another dtype or shape than its header has", name)
                elif live:
                    live.compare(file, folder, name, tensor, findings)
        except (SafetensorError, OSError) as error:
            findings.problem(file, f"cannot be loaded ({error})")
    if live:
        live.report_missing(stored, findings)


def _load(file: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - not a dict
            yield name, opened.get_tensor(name)
