"""The base model of a merge: found by name or path, read by its headers, checked to be the one that was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import INDEX_NAMES, DamagedFile, TensorEntry, read_header, tensor_files
from hf_recipes.export.quantized import Quantized4bit, group_4bit

INDEX_NAME = INDEX_NAMES[0]
BaseTensor = TensorEntry | Quantized4bit


@dataclass(frozen=True)
class BaseModel:
    """A model directory: its config, its tensors by name in file order, and its index if it is sharded."""

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, BaseTensor]
    index: dict[str, Any] | None

    @cached_property
    def vocab_size(self) -> int | None:
        """The number of rows of its embeddings by the config, wherever a composite config keeps it."""
        for part in config_parts(self.config):
            if "vocab_size" in part:
                return part["vocab_size"]
        return None


def config_parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """A config and the config of its language model, for those that nest it."""
    nested = config.get("text_config")
    return [config, nested] if isinstance(nested, dict) else [config]


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


def read_base(directory: Path) -> BaseModel:
    """Read the headers of a base model in 16 or 32 bits, or in bitsandbytes' 4 bits.

    Raises:
        UserError: no safetensors model, a damaged file, or quantised by a method whose weights cannot be added to.
    """
    config = _read_json(directory / "config.json")
    quantisation = config.get("quantization_config") or {}
    if quantisation:
        _refuse_quantised(directory, quantisation)
    files = tensor_files(directory)
    if not files:
        raise UserError(f"'{directory}' holds no model.safetensors: give the base as safetensors (--base).")
    entries: dict[str, TensorEntry] = {}
    for file in files:
        try:
            entries |= read_header(file)[0]
        except FileNotFoundError:
            raise UserError(f"{file} is missing, though {INDEX_NAME} names it: fetch the base again.") from None
        except DamagedFile as error:
            raise UserError(f"The base is damaged: {error}; fetch it again.") from None
    index_file = directory / INDEX_NAME
    tensors: dict[str, BaseTensor] = {**(group_4bit(entries) if quantisation else entries)}
    _refuse_integer_weights(directory, tensors)
    return BaseModel(directory, config, tensors, _read_json(index_file) if index_file.is_file() else None)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} is missing: '{file.parent}' is not a model directory.") from None
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON ({error}): fetch it again.") from None


def _refuse_quantised(directory: Path, quantisation: Mapping[str, Any]) -> None:
    method = quantisation.get("quant_method") or ("bitsandbytes" if "load_in_4bit" in quantisation else "unknown")
    if method == "bitsandbytes" and quantisation.get("load_in_4bit"):
        return
    name = "8-bit bitsandbytes" if method == "bitsandbytes" else str(method).upper()
    raise UserError(
        f"The base '{directory}' is {name}-quantised, and an update cannot be added to such weights: give the 16-bit "
        "model it was made from with --base."
    )


def _refuse_integer_weights(directory: Path, tensors: Mapping[str, BaseTensor]) -> None:
    """Packed weights whose config does not say so."""
    packed = [
        n for n, t in tensors.items() if n.endswith(".weight") and not t.dtype.startswith(("F16", "F32", "BF", "F64"))
    ]
    if packed:
        raise UserError(
            f"The base '{directory}' holds quantised weights ('{packed[0]}' is {tensors[packed[0]].dtype}): give the "
            "16-bit model it was made from with --base."
        )


def recorded_run(adapter: Path) -> dict[str, Any]:
    """What the run that trained `adapter` recorded: the run.json beside the adapter's directory, empty without one.

    Raises:
        UserError: it is there and cannot be read.
    """
    file = adapter.absolute().parent / "run.json"
    return _read_json(file) if file.is_file() else {}


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
