"""From a checkpoint just written to one that is marked as verified: what is taken at once, what may be done later."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from hf_recipes.checkpoints.complete import missing_for_resume
from hf_recipes.checkpoints.live import LiveSums, take_live_sums
from hf_recipes.checkpoints.manifest import (
    MANIFEST_NAME,
    VERIFIED_NAME,
    make_manifest,
    store_manifest,
    write_verified,
)
from hf_recipes.checkpoints.probe import take_probe
from hf_recipes.checkpoints.reload import check_reload
from hf_recipes.checkpoints.rotate import rotate_checkpoints
from hf_recipes.checkpoints.verification.findings import Findings
from hf_recipes.checkpoints.verification.paths import walk_files
from hf_recipes.checkpoints.verification.scan import FileScan, scan_directory
from hf_recipes.checkpoints.verification.verify import VerifyReport, judge, make_report
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import DamagedFile, read_header


@dataclass(frozen=True)
class Rotation:
    """What may go once the checkpoint is good; see `rotate_checkpoints`."""

    limit: int | None
    best_checkpoint: str | None
    trial: int | None


@dataclass(frozen=True)
class Saved:
    """A checkpoint as it was when all ranks had written theirs: its files and their sizes, the sums over the model in
    memory (None: not whole in this process, or not asked for), what its manifest is to say, and whether it must hold
    all that a resumed run needs (not with `save_only_model`)."""

    directory: Path
    step: int
    level: str
    sizes: dict[str, int]
    facts: dict[str, Any]
    live: LiveSums | None
    rotation: Rotation
    resumable: bool


@dataclass(frozen=True)
class Outcome:
    """What became of it: `failed` is why it is not good. `report` is None where nothing is verified (level "off"), or
    where it failed before there was one."""

    saved: Saved
    seconds: float
    failed: str | None = None
    report: VerifyReport | None = None
    removed: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def take_saved(
    directory: Path,
    step: int,
    level: str,
    model: nn.Module | None,
    facts: Mapping[str, Any],
    rotation: Rotation,
    *,
    resumable: bool,
) -> Saved:
    """Take what cannot wait, since training goes on: the list of files, and what the model holds.

    Args:
        level: "off", or one of `LEVELS`.
        model: unwrapped; None: it is not compared.
        facts: for the manifest.
    """
    for stale in (VERIFIED_NAME, MANIFEST_NAME):  # of an earlier attempt that reached this step
        (directory / stale).unlink(missing_ok=True)
    names, refused = walk_files(directory)
    sizes = {name: (directory / name).stat().st_size for name in names} | dict.fromkeys(refused, 0)
    kept, live = dict(facts), None
    if model is not None and level == "reload":
        live = take_live_sums(model, _stored_names(directory, sizes))
    if model is not None and level != "off" and (probe := take_probe(model)):
        kept["probe"] = probe
    return Saved(directory, step, level, sizes, kept, live, rotation, resumable)


def _stored_names(directory: Path, files: Mapping[str, int]) -> dict[str, set[str]]:
    """Tensor names by folder, as the headers have them; damage is for the verification to find."""
    names: dict[str, set[str]] = {}
    for file in files:
        if file.endswith(".safetensors"):
            try:
                entries = read_header(directory / file)[0]
            except (DamagedFile, OSError):
                continue
            names.setdefault(str(Path(file).parent.as_posix()), set()).update(entries)
    return names


def settle(saved: Saved) -> Outcome:
    """Read the checkpoint once and judge it; if it is good write its manifest, mark it, remove older ones. It never
    raises."""
    begin = time.perf_counter()
    name = saved.directory.name
    try:
        return _settle(saved, begin)
    except OSError as error:
        failed = f"{name} could not be marked as complete ({error.strerror or error}): free disk space?"
    except Exception as error:
        logger.exception("Verifying %s crashed.", saved.directory)
        failed = f"verifying {name} crashed with {type(error).__name__}: {error}"
    return Outcome(saved, time.perf_counter() - begin, failed)


def _settle(saved: Saved, begin: float) -> Outcome:
    findings = Findings()
    scans = _scan(saved, findings)
    manifest = make_manifest(saved.directory, saved.facts, scans)
    if saved.level == "off":
        store_manifest(saved.directory, manifest)
        return _rotated(saved, begin, None)
    judge(saved.directory, scans, manifest, findings)
    if saved.resumable:
        for name in missing_for_resume(saved.directory, manifest.world_size):
            findings.problem(".", f"without {name} the run could not go on from here")
    level = saved.level
    if saved.live:
        check_reload(saved.directory, scans, findings, saved.live)
    elif level == "reload":
        level = "content"
        findings.note("The model is sharded over ranks: its values are checked, but not compared with memory.")
    report = make_report(saved.directory, level, scans, findings, proven=True, begin=begin)
    problems = [str(problem) for problem in report.problems]
    if report.ok:  # the hashes of bad bytes would vouch for them once verified.json is lost
        store_manifest(saved.directory, manifest)
    write_verified(saved.directory, level=level, ok=report.ok, seconds=report.seconds, problems=problems)
    if report.ok:
        return _rotated(saved, begin, report)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    failed = f"{saved.directory.name} is not good: {problems[0]}{more}"
    return Outcome(saved, time.perf_counter() - begin, failed, report)


def _scan(saved: Saved, findings: Findings) -> dict[str, FileScan]:
    """The files that the save wrote, and nothing that came later; one that has become another is a fault."""
    # One thread, since the others compute. Nothing vouches for a torch file yet but the checksums in it.
    found = scan_directory(saved.directory, values=True, hashes=True, checksums=True, threads=1)
    for name, size in saved.sizes.items():
        if name not in found:
            findings.problem(name, "has vanished since it was saved")
        elif found[name].bytes != size:
            findings.problem(name, f"has {found[name].bytes} bytes, {size} were saved")
    return {name: scan for name, scan in found.items() if name in saved.sizes}


def _rotated(saved: Saved, begin: float, report: VerifyReport | None) -> Outcome:
    rotation, notes, removed = saved.rotation, [], []
    try:
        removed = rotate_checkpoints(
            saved.directory.parent,
            rotation.limit,
            saved.step,
            rotation.best_checkpoint,
            verified_only=saved.level != "off",
            trial=rotation.trial,
        )
    except OSError as error:  # the new one is good all the same
        notes.append(f"Older checkpoints could not be removed ({error.strerror or error}).")
    return Outcome(saved, time.perf_counter() - begin, None, report, removed, notes)
