"""Where an adapter and its base are: a directory, a GGUF file, or a name on the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import expanded
from hf_recipes.export.bases.hub import fetch_snapshot, split_name
from hf_recipes.export.bases.refuse import refuse_quantised


def find_adapter(adapter: Path | str) -> Path:
    """The directory of an adapter: as given, or by its Hub name (``org/name``, ``org/name@revision``).

    Raises:
        UserError: there is none, or it cannot be had.
    """
    path = expanded(adapter)
    name = split_name(str(adapter))
    if path.exists() or name is None or "/" not in name[0]:
        return path
    return fetch_snapshot(*name, "adapter")


def find_base(config: Mapping[str, Any], base: Path | str | None, recorded: Mapping[str, Any]) -> Path:
    """The base: `base` if given, else the one the adapter's config or the run names.

    A Hub name is looked up in the cache and, unless HF_HUB_OFFLINE is set, fetched; a quantised model that cannot be
    merged into is refused before its weights are fetched.

    Args:
        config: adapter_config.json.
        base: a directory, GGUF file or Hub name (``org/name``, ``org/name@revision``) that overrides it.
        recorded: `base_model` of the run's run.json, for the GGUF file or Hub revision that was trained on.

    Returns:
        A directory, or a ``.gguf`` file (see `gguf.opened_base`).

    Raises:
        UserError: there is none, or it cannot be had.
    """
    name = str(base or config.get("base_model_name_or_path") or "")
    if base is None and (gguf := _recorded_gguf(name, recorded)):
        name = gguf
    if not name:
        raise UserError("adapter_config.json names no base model: give it with --base.")
    path = expanded(name)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    hub = split_name(name)
    if path.is_absolute() or hub is None or name.endswith(".gguf") or path.exists():
        raise UserError(f"The base model '{name}' is not a directory here: give the place of the base with --base.")
    model, revision = hub
    if revision is None and base is None:
        revision = config.get("revision")
    if revision is None and recorded.get("name_or_path") == model:
        revision = recorded.get("revision")
    originals = adapter_names(config, recorded)
    return fetch_snapshot(
        model, revision, "base model", lambda facts, card: refuse_quantised(model, facts, [*card, *originals])
    )


def adapter_names(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """What an adapter and its run call their base, for the sentence that refuses another one."""
    names = [config.get("base_model_name_or_path"), recorded.get("name_or_path")]
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and name]


def _recorded_gguf(name: str, recorded: Mapping[str, Any]) -> str | None:
    """The GGUF file a run was trained on: PEFT keeps only the name of the directory it lies in."""
    file = recorded.get("name_or_path")
    if not isinstance(file, str) or not file.endswith(".gguf"):
        return None
    return file if not name or Path(name) in (Path(file), Path(file).parent) else None
