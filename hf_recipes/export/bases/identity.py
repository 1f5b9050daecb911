"""Whether a base is the one an adapter was trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import tensor_files
from hf_recipes.export.bases.read import read_json_file


def recorded_run(adapter: Path) -> dict[str, Any]:
    """What the run that trained `adapter` recorded: the run.json beside the adapter's directory, empty without one.

    Raises:
        UserError: it is there and cannot be read.
    """
    file = adapter.absolute().parent / "run.json"
    return read_json_file(file) if file.is_file() else {}


def check_identity(directory: Path, recorded: Mapping[str, Any], allow_other: bool) -> str:
    """Compare the base with the one the run recorded; returns ``same``, ``other`` or ``unknown`` (case M13).

    By hashes of the weights where the run kept them, else by the commit of a Hub snapshot.

    Args:
        directory: of the base.
        recorded: `base_model` of run.json.
        allow_other: another base is meant: a warning instead of an error.

    Raises:
        UserError: it is another base, and that is not allowed.
    """
    difference = _difference(directory, recorded)
    if not difference:
        return "unknown" if difference is None else "same"
    if not allow_other:
        raise UserError(
            f"The base '{directory}' is not the one the adapter was trained on ({difference}): restore that one or "
            "name it with --base; if this one is meant, give --allow-other-base."
        )
    logger.warning("The base '%s' is not the one the adapter was trained on: %s.", directory, difference)
    return "other"


def _difference(directory: Path, recorded: Mapping[str, Any]) -> str | None:
    """What differs, empty if nothing, None if nothing can be compared."""
    hashes = recorded.get("weights_sha256")
    if isinstance(hashes, dict) and hashes:
        files = {file.name: file for file in tensor_files(directory)}
        if set(files) != set(hashes):
            return f"its weight files are {', '.join(sorted(files))}; recorded: {', '.join(sorted(hashes))}"
        changed = [name for name, file in files.items() if sha256_of_file(file) != hashes[name]]
        return f"other bytes in {', '.join(changed)}" if changed else ""
    commit = re.search(r"/snapshots/([0-9a-f]{40})(/|$)", directory.as_posix())
    revision = recorded.get("revision")
    if commit and isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{40}", revision):
        return "" if commit[1] == revision else f"revision {commit[1]}; recorded: {revision}"
    return None
