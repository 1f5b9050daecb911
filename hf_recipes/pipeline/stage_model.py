"""One stage of a model on this rank: the whole model without memory, of which the stage's own part becomes real.

Modules and parameters keep the names they have in the whole model, so adapters, optimizer states and saved files do
too: a layer of another stage is a `SkippedLayer` at its old place, and transformers' own forward runs through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import DamagedFile, TensorEntry, entries_by_name
from hf_recipes.pipeline.cut import Part

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_PEFT_PREFIX = "base_model.model."


class SkippedLayer(nn.Module):
    """Stands where a layer of another stage is: what comes in goes out."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states


def skeleton(config: Any, dtype: torch.dtype, attn_implementation: str | None = None) -> Any:
    """The whole model on the meta device: shapes and names, no memory."""
    from transformers import AutoModelForCausalLM

    more = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False, **more)
    model.config.use_cache = False
    return model


def layer_sizes(model: Any) -> tuple[float, float]:
    """Embedding and head in layers, by parameters; a tied head counts, since the last stage holds a copy."""
    layer = sum(each.numel() for each in model.model.layers[0].parameters())
    head = sum(each.numel() for each in (*model.lm_head.parameters(), *model.model.norm.parameters()))
    return model.model.embed_tokens.weight.numel() / layer, head / layer


def reserve_part(model: Any, part: Part) -> None:
    """Give those modules of a skeleton that belong to `part` memory on the host. Their values are not there yet, and
    pages that nobody writes to cost nothing."""
    decoder = model.model
    own = [decoder.layers[index] for index in part.layers]
    own += [decoder.embed_tokens] if part.first else []
    own += [decoder.norm, model.lm_head] if part.last else []
    for module in own:
        module.to_empty(device="cpu")
    if model.config.tie_word_embeddings:  # one tensor again, and counted once
        if part.first:
            model.lm_head.weight = decoder.embed_tokens.weight
        else:
            decoder.embed_tokens.weight = model.lm_head.weight
    decoder.rotary_emb = type(decoder.rotary_emb)(config=model.config)


def drop_others(model: Any, part: Part) -> None:
    """Take out of the whole model what belongs to other stages."""
    decoder = model.model
    for index in range(len(decoder.layers)):
        if index not in part.layers:
            decoder.layers[index] = SkippedLayer()
    if not part.first:
        decoder.embed_tokens = None
    if not part.last:
        decoder.norm, model.lm_head = nn.Identity(), None


def plain_name(name: str) -> str:
    """The name that a parameter has without an adapter around."""
    return name.removeprefix(_PEFT_PREFIX).replace(".base_layer.", ".")


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to an adapter, not to the base."""
    return ".lora_" in name


def fill_part(model: nn.Module, directory: Path) -> None:
    """Load what this stage holds of the base from safetensors files, one tensor at a time; of a matrix that is shared
    among ranks, this rank's part is kept.

    Raises:
        UserError: a file is damaged, a tensor is not there, or has another shape.
    """
    entries = _entries_of(directory)
    for name, parameter in model.named_parameters():
        if not is_adapter(name):
            _fill(parameter, _entry_of(plain_name(name), entries, directory), directory)


def adapter_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The adapter's parameters under the names they have in an adapter file."""
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            yield name.replace(".default.", "."), parameter


def fill_adapter(model: nn.Module, directory: Path) -> None:
    """Load what this stage holds of an adapter; see `fill_part`."""
    entries = _entries_of(directory)
    for name, parameter in adapter_parameters(model):
        _fill(parameter, _entry_of(name, entries, directory), directory)


def _entries_of(directory: Path) -> dict[str, TensorEntry]:
    try:
        return entries_by_name(directory)
    except DamagedFile as error:
        raise UserError(f"{error}: fetch the model, or take the checkpoint, once more.") from None


def _entry_of(name: str, entries: Mapping[str, TensorEntry], directory: Path) -> TensorEntry:
    if name == _HEAD and name not in entries:
        name = _EMBEDDING  # tied weights are stored once
    if name not in entries:
        raise UserError(f"'{directory}' does not hold '{name}' in safetensors files: save the model once more as such.")
    return entries[name]


@torch.no_grad()
def _fill(parameter: Tensor, entry: TensorEntry, directory: Path) -> None:
    if tuple(entry.shape) != tuple(parameter.shape):
        raise UserError(f"'{directory}' holds '{entry.name}' {list(entry.shape)}, not {list(parameter.shape)}.")
    value = entry.load()
    if isinstance(parameter, DTensor):
        value = distribute_tensor(
            value.to(parameter.device, parameter.dtype), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    parameter.copy_(value)
