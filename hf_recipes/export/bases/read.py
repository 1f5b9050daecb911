"""A base model read by its headers: its config, its tensors, its index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.tensors import FLOATS, INDEX_NAMES, DamagedFile, TensorEntry, read_header, tensor_files
from hf_recipes.export.bases.quantized_4bit import Quantized4bit, group_4bit, transpose_4bit
from hf_recipes.export.bases.quantized_8bit import Quantized8bit, group_8bit, transpose_8bit
from hf_recipes.export.bases.refuse import bitsandbytes_bits, quantisation_of, refuse_quantised
from hf_recipes.export.bases.requantized import Requantized
from hf_recipes.export.config_types import check_base_config

INDEX_NAME = INDEX_NAMES[0]
BaseTensor = TensorEntry | Quantized4bit | Quantized8bit | Requantized


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


def read_base(directory: Path, originals: Iterable[str] = ()) -> BaseModel:
    """Read the headers of a base model in 16 or 32 bits, or in bitsandbytes' 4 or 8 bits.

    Args:
        directory: of the model.
        originals: names the adapter gives for its base, for the sentence that refuses a quantised one.

    Raises:
        UserError: no safetensors model, a damaged file, or quantised by a method whose weights cannot be added to.
    """
    config = read_json_file(directory / "config.json")
    check_base_config(config, directory / "config.json")
    refuse_quantised(directory, config, originals)
    files = weight_files(directory)
    if not files:
        raise UserError(f"'{directory}' holds no model.safetensors: give the base as safetensors (--base).")
    entries = _read_entries(files)
    index_file = directory / INDEX_NAME
    index = read_json_file(index_file) if index_file.is_file() else None
    if index and (lacking := sorted(set(index["weight_map"]) - set(entries))):
        raise UserError(
            f"The base is damaged: {index_file} names {len(lacking)} tensors that none of its files holds "
            f"('{lacking[0]}'); fetch it again."
        )
    tensors = _values(directory, quantisation_of(config), entries)
    _refuse_integer_weights(directory, tensors)
    return BaseModel(directory, config, tensors, index)


def weight_files(directory: Path) -> list[Path]:
    """As `core.tensors.tensor_files`; a damaged index is a `UserError` too."""
    try:
        return tensor_files(directory)
    except DamagedFile as error:
        raise UserError(f"The base is damaged: {error}; fetch it again.") from None


def _read_entries(files: Iterable[Path]) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    for file in files:
        try:
            own = read_header(file)[0]
        except FileNotFoundError:
            raise UserError(f"{file} is missing, though {INDEX_NAME} names it: fetch the base again.") from None
        except DamagedFile as error:
            raise UserError(f"The base is damaged: {error}; fetch it again.") from None
        if twice := sorted(set(own) & set(entries)):
            raise UserError(
                f"The base is damaged: '{twice[0]}' is in {entries[twice[0]].file.name} and in {file.name}, and which "
                "of them counts cannot be told; fetch it again."
            )
        entries |= own
    return entries


def _values(
    directory: Path, quantisation: Mapping[str, Any], entries: Mapping[str, TensorEntry]
) -> dict[str, BaseTensor]:
    """The tensors as what they stand for: what bitsandbytes packed, with its scales, is one tensor of values."""
    bits = bitsandbytes_bits(quantisation)
    if bits is None or quantisation.get("llm_int8_has_fp16_weight"):  # the latter quantises in each forward pass
        return dict(entries)
    grouped: Mapping[str, TensorEntry | Quantized4bit | Quantized8bit]
    grouped = group_4bit(entries) if bits == 4 else group_8bit(entries)
    turned = _turned(directory, [name for name, tensor in grouped.items() if not isinstance(tensor, TensorEntry)])
    return {name: _turn(tensor) if name in turned else tensor for name, tensor in grouped.items()}


def _turned(directory: Path, packed: list[str]) -> set[str]:
    """Packed weights of `Conv1D` layers, which only models have whose class is transformers' own."""
    from hf_recipes.export.bases.linear_layers import conv1d_weights, model_of_task

    try:
        return conv1d_weights(model_of_task(directory, None), packed)
    except UserError:
        return set()


def _turn(tensor: TensorEntry | Quantized4bit | Quantized8bit) -> Quantized4bit | Quantized8bit:
    assert not isinstance(tensor, TensorEntry), tensor.name
    return transpose_4bit(tensor) if isinstance(tensor, Quantized4bit) else transpose_8bit(tensor)


def read_json_file(file: Path) -> dict[str, Any]:
    """The JSON object in a file; raises `UserError` if there is none."""
    try:
        value = read_json(file)
    except FileNotFoundError:
        raise UserError(f"{file} is missing: '{file.parent}' is not a model directory.") from None
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON ({error}): fetch it again.") from None
    if not isinstance(value, dict):
        raise UserError(f"{file} is not a JSON object: fetch it again.")
    return value


def _refuse_integer_weights(directory: Path, tensors: Mapping[str, BaseTensor]) -> None:
    """Packed weights whose config does not say so."""
    packed = [name for name, tensor in tensors.items() if name.endswith(".weight") and tensor.dtype not in FLOATS]
    if packed:
        raise UserError(
            f"The base '{directory}' holds quantised weights ('{packed[0]}' is {tensors[packed[0]].dtype}): give the "
            "16-bit model it was made from with --base."
        )
