"""`verify_checkpoint`: is this checkpoint, adapter or model what it was when it was written, and sound?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_recipes.checkpoints.adapter import check_against_base
from hf_recipes.checkpoints.content import check_manifest, check_values
from hf_recipes.checkpoints.findings import LEVELS, Findings, Problem
from hf_recipes.checkpoints.manifest import DamagedManifest, Manifest, read_manifest
from hf_recipes.checkpoints.scan import MANIFEST_NAME, FileScan, scan_directory
from hf_recipes.checkpoints.structure import check_structure, has_weights
from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.run_directory import list_checkpoints

_SIGNS = (MANIFEST_NAME, "config.json", "adapter_config.json", "trainer_state.json")


@dataclass(frozen=True)
class VerifyReport:
    """The result of one verification. `checked_bytes` are the sizes of all files looked at; `proven` says whether a
    manifest was there to compare with: without one, a changed bit that leaves a value finite cannot be seen."""

    directory: Path
    level: str
    problems: list[Problem]
    notes: list[str]
    proven: bool
    files: int
    tensors: int
    checked_bytes: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "directory": str(self.directory), "ok": self.ok}


def verify_checkpoint(directory: str | Path, level: str = "content", base: str | Path | None = None) -> VerifyReport:
    """Verify any directory of safetensors weights: a Trainer's checkpoint, an adapter, a model; with or without a
    manifest of ours. Memory is bounded by two buffers of 2 MiB (and at "reload" by one tensor); nothing is unpickled.

    Args:
        directory: the checkpoint.
        level: "structure" reads headers, indices and JSON files only (milliseconds); "content" reads every byte:
            hashes against the manifest, NaN and Inf, newly all-zero tensors; "reload" also loads each tensor through
            safetensors.
        base: for an adapter, the directory of its base model: shapes must fit.

    Raises:
        UserError: the directory is missing, empty or no checkpoint at all, or there is no such level.
    """
    begin = time.perf_counter()
    directory = Path(directory)
    if level not in LEVELS:
        raise UserError(f"verify: level '{level}' is none of {', '.join(LEVELS)}{nearest(level, LEVELS)}.")
    _require_checkpoint(directory)
    findings = Findings()
    manifest = _readable_manifest(directory, findings)
    values = level != "structure"
    scans = scan_directory(directory, values=values, hashes=values and manifest is not None)
    judge(directory, scans, manifest, findings)
    if base is not None:
        check_against_base(Path(base), scans, findings)
    if level == "reload":
        from hf_recipes.checkpoints.reload import check_reload

        check_reload(directory, scans, findings)
    return make_report(directory, level, scans, findings, manifest is not None, begin)


def judge(directory: Path, scans: Mapping[str, FileScan], manifest: Manifest | None, findings: Findings) -> None:
    """Draw the conclusions from a scan; what was not scanned (values, hashes) is not judged."""
    check_structure(directory, scans, findings)
    if manifest:
        check_manifest(scans, manifest, findings)
    else:
        findings.note("No manifest: damage that leaves a value finite, such as one changed bit, cannot be seen.")
    check_values(scans, findings)


def make_report(
    directory: Path, level: str, scans: Mapping[str, FileScan], findings: Findings, proven: bool, begin: float
) -> VerifyReport:
    """Sum up; `begin` is `time.perf_counter()` at the start."""
    return VerifyReport(
        directory=directory,
        level=level,
        problems=findings.problems,
        notes=findings.notes,
        proven=proven,
        files=len(scans),
        tensors=sum(len(scan.tensors or ()) for scan in scans.values()),
        checked_bytes=sum(scan.bytes for scan in scans.values()),
        seconds=time.perf_counter() - begin,
    )


def _readable_manifest(directory: Path, findings: Findings) -> Manifest | None:
    try:
        return read_manifest(directory)
    except DamagedManifest as error:
        findings.problem(MANIFEST_NAME, str(error))
        return None


def _require_checkpoint(directory: Path) -> None:
    if not directory.exists():
        raise UserError(f"'{directory}' does not exist: name a checkpoint, adapter or model directory.")
    if not directory.is_dir():
        raise UserError(f"'{directory}' is a file: name the directory that holds it.")
    names = {path.relative_to(directory).as_posix(): FileScan(0) for path in directory.glob("**/*") if path.is_file()}
    if not names:
        raise UserError(f"'{directory}' is empty: name a checkpoint, adapter or model directory.")
    if not has_weights(names) and not any(sign in names for sign in _SIGNS):
        inside = list_checkpoints(directory)
        hint = f"; it holds checkpoints, such as {inside[-1].name}" if inside else ""
        raise UserError(f"'{directory}' is no checkpoint, adapter or model (no weights, no config.json){hint}.")
