"""`verify_checkpoint`: is this checkpoint, adapter or model what it was when it was written, and sound?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_recipes.checkpoints.manifest import DamagedManifest, Manifest, read_manifest
from hf_recipes.checkpoints.verification.adapter import CONFIG_NAME as ADAPTER_CONFIG
from hf_recipes.checkpoints.verification.adapter_base import check_against_base, find_known_base
from hf_recipes.checkpoints.verification.content import check_manifest, check_values
from hf_recipes.checkpoints.verification.findings import LEVELS, Findings, Problem, some
from hf_recipes.checkpoints.verification.paths import why_not_opened
from hf_recipes.checkpoints.verification.scan import MANIFEST_NAME, scan_directory
from hf_recipes.checkpoints.verification.scan_facts import FileScan
from hf_recipes.checkpoints.verification.structure import check_structure, folder_tensors, has_weights
from hf_recipes.checkpoints.verification.tokenizer_fit import check_tokenizer, embedding_rows
from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.run_directory import list_checkpoints
from hf_recipes.core.tensors import BITS_PER_ELEMENT, INDEX_NAMES

_SIGNS = (MANIFEST_NAME, "config.json", "adapter_config.json", "trainer_state.json", *INDEX_NAMES)


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


def verify_checkpoint(
    directory: str | Path, level: str = "content", base: str | Path | None = None, *, own: bool = False
) -> VerifyReport:
    """Verify any directory of safetensors weights: a Trainer's checkpoint, an adapter, a model; with or without a
    manifest of ours. Nothing is unpickled, and nothing is opened that lies outside the directory (save an adapter's
    base and the blobs that the Hub's cache links to).

    Memory is two buffers of 2 MiB a thread (one for each core, at most 8); at "reload" also the model.

    Args:
        directory: the checkpoint.
        level: "structure" reads headers, indices, JSON files and the directories of torch's files (milliseconds):
            shapes against config.json, tokenizer against embedding, an adapter against its base where that is here;
            "content" reads every byte: hashes against the manifest, NaN and Inf, newly all-zero tensors; "reload" also
            loads the model or adapter by transformers or PEFT, strictly, on the CPU, and runs it once.
        base: for an adapter, the directory of its base model; else the one it names, where this machine has it.
        own: this run wrote the checkpoint: names of the user's own code in training_args.bin are no problem.

    Raises:
        UserError: the directory is missing, empty or no checkpoint at all, or there is no such level.
    """
    begin = time.perf_counter()
    directory = Path(directory)
    if level not in LEVELS:
        raise UserError(f"verify: level '{level}' is none of {', '.join(LEVELS)}{nearest(level, LEVELS)}.")
    _require_directory(directory, "a checkpoint, adapter or model directory")
    if base is not None:
        _require_directory(Path(base), "the directory of the base model")
    findings = Findings()
    manifest = _readable_manifest(directory, findings)
    values = level != "structure"
    scans = scan_directory(directory, values=values, hashes=values and manifest is not None)
    _require_checkpoint(directory, scans)
    judge(directory, scans, manifest, findings, own=own)
    if others := [name for name in scans if name.endswith(f"/{MANIFEST_NAME}")]:
        findings.note(f"Nothing was compared with {some(others)}, of directories of their own: verify those too.")
    bases = _check_adapters(directory, scans, Path(base) if base is not None else None, findings)
    if level == "reload":
        from hf_recipes.checkpoints.reload import check_reload
        from hf_recipes.checkpoints.verification.loaded import check_loaded

        check_reload(directory, {name: scan for name, scan in scans.items() if _whole_bytes(scan)}, findings)
        check_loaded(directory, scans, bases, manifest, findings)
    return make_report(directory, level, scans, findings, manifest is not None, begin)


def _whole_bytes(scan: FileScan) -> bool:
    """Whether torch has all dtypes of a file as safetensors describes them: elements below a byte it lacks or pairs."""
    return all(BITS_PER_ELEMENT[facts.dtype] >= 8 for facts in (scan.tensors or {}).values())


def judge(
    directory: Path, scans: Mapping[str, FileScan], manifest: Manifest | None, findings: Findings, *, own: bool = True
) -> None:
    """Draw the conclusions from a scan; what was not scanned (values, hashes) is not judged."""
    check_structure(scans, findings, own=own)
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


def _check_adapters(
    directory: Path, scans: Mapping[str, FileScan], asked: Path | None, findings: Findings
) -> dict[str, Path | None]:
    """Hold each adapter against its base, where that is here; the bases by the adapter's folder in the checkpoint."""
    bases: dict[str, Path | None] = {}
    for name, scan in scans.items():
        folder, _, file = name.rpartition("/")
        if file != ADAPTER_CONFIG or not isinstance(scan.content, dict):
            continue
        base = bases[folder] = asked or find_known_base(directory / folder, scan.content)
        if base is None:
            continue
        inside = {path: held for path, held in scans.items() if path.rpartition("/")[0] == folder}
        shapes = check_against_base(base, inside, findings, asked=asked is not None)
        if shapes and embedding_rows(folder_tensors(inside)) is None:
            plain = {path.rpartition("/")[2]: held for path, held in inside.items()}
            check_tokenizer(f"{folder}/" if folder else "", plain, shapes.rows, findings)
    if asked and not bases:
        findings.note(f"--base {asked} was not used: there is no adapter here.")
    return bases


def _readable_manifest(directory: Path, findings: Findings) -> Manifest | None:
    file = directory / MANIFEST_NAME
    if (file.is_symlink() or file.exists()) and (why := why_not_opened(directory.resolve(), file)):
        findings.problem(MANIFEST_NAME, why)
        return None
    try:
        return read_manifest(directory)
    except DamagedManifest as error:
        findings.problem(MANIFEST_NAME, str(error))
    except OSError as error:
        findings.problem(MANIFEST_NAME, f"cannot be read ({error.strerror or error})")
    return None


def _require_directory(directory: Path, what: str) -> None:
    if not directory.exists():
        raise UserError(f"'{directory}' does not exist: name {what}.")
    if not directory.is_dir():
        raise UserError(f"'{directory}' is no directory: name {what}.")


def _require_checkpoint(directory: Path, scans: Mapping[str, FileScan]) -> None:
    names = {*scans, *(sign for sign in _SIGNS if (directory / sign).is_file())}
    if not names:
        raise UserError(f"'{directory}' is empty: name a checkpoint, adapter or model directory.")
    if not has_weights(names) and not any(sign in names for sign in _SIGNS):
        inside = list_checkpoints(directory)
        hint = f"; it holds checkpoints, such as {inside[-1].name}" if inside else ""
        raise UserError(f"'{directory}' is no checkpoint, adapter or model (no weights, no config.json){hint}.")
