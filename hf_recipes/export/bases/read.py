"""A base model read by its headers: its config, its tensors, its index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import INDEX_NAMES, DamagedFile, TensorEntry, read_header, tensor_files
from hf_recipes.export.bases.quantized_4bit import Quantized4bit, group_4bit

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


def read_base(directory: Path) -> BaseModel:
    """Read the headers of a base model in 16 or 32 bits, or in bitsandbytes' 4 bits.

    Raises:
        UserError: no safetensors model, a damaged file, or quantised by a method whose weights cannot be added to.
    """
    config = read_json_file(directory / "config.json")
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
    return BaseModel(directory, config, tensors, read_json_file(index_file) if index_file.is_file() else None)


def read_json_file(file: Path) -> dict[str, Any]:
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
