"""`manifest.json`: what a checkpoint held when it was written. It is written last and synced, so its presence means
that everything else is there."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.checkpoints.verification.scan import (
    MANIFEST_NAME,
    VERIFIED_NAME,
    FileScan,
    TensorFacts,
    list_files,
    scan_directory,
)
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import fsync_directory, json_safe, read_json, write_json
from hf_recipes.core.ranks import world_size
from hf_recipes.core.run_directory import checkpoint_step

SCHEMA = 1


class DamagedManifest(ValueError):
    """A manifest that is no JSON, lacks a field, or does not match its own checksum."""


@dataclass(frozen=True)
class Manifest:
    """Sizes, hashes and tensors of a checkpoint by relative path; `extra` is free (recipe hash, base model, seeds)."""

    files: dict[str, FileScan]
    step: int | None = None
    world_size: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; ``checksum`` is the SHA-256 of the rest, so that damage to the manifest is seen too."""
        content = json_safe(
            {
                "schema": SCHEMA,
                "step": self.step,
                "world_size": self.world_size,
                "files": {name: {"bytes": scan.bytes, "sha256": scan.sha256} for name, scan in self.files.items()},
                "tensors": {
                    name: {tensor: vars(facts) for tensor, facts in scan.tensors.items()}
                    for name, scan in self.files.items()
                    if scan.tensors is not None
                },
                "extra": self.extra,
            }
        )
        return {**content, "checksum": _checksum(content)}

    @classmethod
    def from_dict(cls, value: Any) -> Manifest:
        """The inverse of `to_dict`; raises `DamagedManifest`."""
        try:
            content = {key: item for key, item in value.items() if key != "checksum"}
            if value["checksum"] != _checksum(content):
                raise DamagedManifest("does not match its own checksum")
            tensors = content["tensors"]
            files = {
                name: FileScan(file["bytes"], file["sha256"], _tensors(tensors.get(name)))
                for name, file in content["files"].items()
            }
            counts = (content["step"], content["world_size"])
            if not all(each is None or (isinstance(each, int) and not isinstance(each, bool)) for each in counts):
                raise DamagedManifest("has a step or a world size that is no number")
            return cls(files, *counts, content["extra"])
        except (AttributeError, KeyError, TypeError) as error:
            raise DamagedManifest(f"lacks what a manifest holds ({error})") from None


def _tensors(value: dict[str, Any] | None) -> dict[str, TensorFacts] | None:
    if value is None:
        return None
    return {
        name: TensorFacts(
            facts["dtype"], tuple(facts["shape"]), None if facts["abs_max"] is None else float(facts["abs_max"])
        )
        for name, facts in value.items()
    }


def _checksum(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_manifest(
    directory: str | Path, extra: Mapping[str, Any] | None = None, scans: dict[str, FileScan] | None = None
) -> Manifest:
    """Hash a finished checkpoint, adapter or model directory and write its ``manifest.json``, synced to the disk.

    Call it on one rank only, after all ranks have written theirs.

    Args:
        extra: free values to keep with it; ``step`` there overrides the N of ``checkpoint-N``.
        scans: what `scan_directory` with values and hashes found just before, to read the files only once.

    Raises:
        OSError: the disk is full, or a file cannot be read.
    """
    directory = Path(directory)
    if scans is None:
        scans = scan_directory(directory, values=True, hashes=True)
    manifest = make_manifest(directory, extra, scans)
    store_manifest(directory, manifest)
    return manifest


def make_manifest(directory: Path, extra: Mapping[str, Any] | None, scans: dict[str, FileScan]) -> Manifest:
    """The manifest of what a scan with values and hashes found in `directory`; nothing is written."""
    facts = dict(extra or {})
    return Manifest(scans, facts.pop("step", _step(directory)), world_size(), facts)


def store_manifest(directory: Path, manifest: Manifest) -> None:
    """Make the files durable, then write ``manifest.json``; marks of an earlier attempt go first."""
    for stale in (MANIFEST_NAME, VERIFIED_NAME):
        (directory / stale).unlink(missing_ok=True)
    _sync(directory)
    write_json(directory / MANIFEST_NAME, manifest.to_dict())
    fsync_directory(directory.absolute().parent)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory, None where there is none; raises `DamagedManifest`."""
    try:
        return Manifest.from_dict(read_json(directory / MANIFEST_NAME))
    except FileNotFoundError:
        return None
    except DamagedManifest:
        raise
    except ValueError as error:
        raise DamagedManifest(f"is not JSON ({error})") from None


def write_verified(directory: Path, *, level: str, ok: bool, seconds: float, problems: list[str]) -> None:
    """Write ``verified.json``: how a checkpoint was verified right after it was written, and with what result."""
    mark = {"level": level, "ok": ok, "time": time.time(), "seconds": round(seconds, 3), "problems": problems}
    write_json(directory / VERIFIED_NAME, mark)


def read_verified(directory: Path) -> dict[str, Any] | None:
    """What ``verified.json`` says; None where it is absent or damaged (the checkpoint then counts as not verified)."""
    try:
        mark = read_json(directory / VERIFIED_NAME)
    except (FileNotFoundError, ValueError):
        return None
    return mark if isinstance(mark, dict) and isinstance(mark.get("ok"), bool) else None


def _step(directory: Path) -> int | None:
    try:
        return checkpoint_step(directory.absolute())
    except UserError:  # an adapter or a model
        return None


def _sync(directory: Path) -> None:
    """Make the checkpoint's files and directories durable, before the manifest says that they are."""
    names = list_files(directory)
    for name in names:
        with open(directory / name, "rb+") as file:  # Windows syncs only what is open for writing
            os.fsync(file.fileno())
    for folder in {(directory / name).parent for name in names}:
        fsync_directory(folder)
