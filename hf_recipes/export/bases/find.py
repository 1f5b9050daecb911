"""Where the base of an adapter is: a directory, or the Hub's cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import tensor_files


def find_base(config: Mapping[str, Any], base: Path | str | None, recorded: Mapping[str, Any]) -> Path:
    """The directory of the base: `base` if given, else the one the adapter's config names; a Hub name is looked up in
    the cache.

    Args:
        config: adapter_config.json.
        base: a directory or Hub name that overrides it.
        recorded: `base_model` of the run's run.json, for the Hub revision that was trained on.

    Raises:
        UserError: there is none, or it cannot be had.
    """
    name = str(base or config.get("base_model_name_or_path") or "")
    if not name:
        raise UserError("adapter_config.json names no base model: give it with --base.")
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.exists():
        raise UserError(f"The base model '{name}' is not a directory here: give the place of the base with --base.")
    revision = config.get("revision") if base is None else None
    if revision is None and recorded.get("name_or_path") == name:
        revision = recorded.get("revision")
    return _from_cache(name, revision)


def _from_cache(name: str, revision: str | None) -> Path:
    """The snapshot of a Hub model in the local cache; a merge fetches nothing by itself."""
    from huggingface_hub import snapshot_download

    try:
        cached = Path(snapshot_download(name, revision=revision, local_files_only=True))
        files = tensor_files(cached)
        if files and all(file.is_file() for file in files):
            return cached
    except (OSError, ValueError):
        pass
    at = f" (revision {revision})" if revision else ""
    raise UserError(
        f"The base model '{name}'{at} is neither a directory nor whole in the Hugging Face cache: download it, or give "
        "its directory with --base."
    )
