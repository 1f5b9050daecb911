"""Whether a base is the one an adapter was trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.log import logger
from hf_recipes.export.bases.read import read_json_file, weight_files
from hf_recipes.export.config_types import check_run


def recorded_run(adapter: Path) -> dict[str, Any]:
    """What the run that trained `adapter` recorded: the run.json beside the adapter's directory, empty without one.

    Raises:
        UserError: it is there and cannot be read.
    """
    file = adapter.absolute().parent / "run.json"
    run = read_json_file(file) if file.is_file() else {}
    check_run(run, file)
    return run


def check_identity(base: Path, recorded: Mapping[str, Any], allow_other: bool) -> str:
    """Compare the base with the one the run recorded; returns ``same``, ``other`` or ``unknown`` (case M13).

    By hashes of the weights where the run kept them, else by the commit of a Hub snapshot. A GGUF file and the model it
    was made from are two bases: their weights differ.

    Args:
        base: its directory, or the GGUF file (not what it was dequantised to).
        recorded: `base_model` of run.json.
        allow_other: another base is meant: a warning instead of an error.

    Raises:
        UserError: it is another base, and that is not allowed.
    """
    difference = _difference(base, recorded)
    if not difference:
        return "unknown" if difference is None else "same"
    if not allow_other:
        raise UserError(
            f"The base '{base}' is not the one the adapter was trained on ({difference}): restore that one or "
            "name it with --base; if this one is meant, give --allow-other-base."
        )
    logger.warning("The base '%s' is not the one the adapter was trained on: %s.", base, difference)
    return "other"


def _difference(base: Path, recorded: Mapping[str, Any]) -> str | None:
    """What differs, empty if nothing, None if nothing can be compared."""
    hashes = recorded.get("weights_sha256")
    if isinstance(hashes, dict) and hashes:
        files = {file.name: file for file in ([base] if base.is_file() else weight_files(base))}
        if set(files) != set(hashes):
            return f"its weight files are {', '.join(sorted(files))}; recorded: {', '.join(sorted(hashes))}"
        changed = [name for name, file in files.items() if sha256_of_file(file) != hashes[name]]
        return f"other bytes in {', '.join(changed)}" if changed else ""
    if kinds := _other_kind(base, str(recorded.get("name_or_path") or "")):
        return kinds
    commit = re.search(r"/snapshots/([0-9a-f]{40})(/|$)", base.as_posix())
    revision = recorded.get("revision")
    if commit and isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{40}", revision):
        return "" if commit[1] == revision else f"revision {commit[1]}; recorded: {revision}"
    return None


def _other_kind(base: Path, name: str) -> str:
    """Told by names alone: trained on a GGUF file and merged into something else, or the other way round."""
    trained_on_gguf = name.endswith(".gguf")
    if not name or trained_on_gguf == base.is_file():
        return ""
    return f"trained on {'the GGUF file ' if trained_on_gguf else ''}'{name}'"
