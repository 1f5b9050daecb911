"""Where an adapter's edits, named as transformers names parameters in memory, lie in the base's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import FLOATS
from hf_recipes.export.adapter import Adapter, Edit
from hf_recipes.export.bases.read import BaseModel, BaseTensor
from hf_recipes.export.conversion import Conversions, Fusion, NotReversible, read_conversions
from hf_recipes.export.experts import with_parameters
from hf_recipes.export.heads import new_head_names


@dataclass(frozen=True)
class ParameterTensor:
    """A parameter that several tensors of the checkpoint, or a part of one, become in memory: its form alone."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path

    def load(self) -> NoReturn:
        """A parameter is made by its `ConvertedGroup`, together with the others of it."""
        raise AssertionError(self.name)


@dataclass(frozen=True)
class Placement:
    """The adapter with its edits under the names of checkpoint tensors; apart from it the edits of parameters that a
    conversion makes; and the checkpoint tensor of each parameter that is only renamed."""

    adapter: Adapter
    fused: list[tuple[Fusion, dict[str, Edit]]] = field(default_factory=list)
    renamed: Mapping[str, str] = field(default_factory=dict)


def place_in_checkpoint(adapter: Adapter, base: BaseModel) -> Placement:
    """Name edits by what the checkpoint holds. Headers are enough where names are the same; only else, and for
    `target_parameters`, transformers is asked.

    Raises:
        NotReversible: a parameter whose conversion transformers cannot undo.
        UserError: transformers has no class for the model, or a pair does not fit the parameter it is on.
    """
    of_parameters = bool(adapter.config.get("target_parameters"))
    if not of_parameters and not _unknown_names(adapter, base):
        return Placement(adapter)
    try:
        conversions = read_conversions(base)
    except NotReversible:
        raise
    except UserError:
        if of_parameters:
            raise
        return Placement(adapter)  # what fits nowhere is refused by the plan, by its name
    edits = with_parameters(adapter.edits, adapter.config, conversions.model) if of_parameters else adapter.edits
    own, fused = _split(edits, base, conversions)
    return Placement(replace(adapter, edits=own), fused, conversions.renamed)


def base_name(parameter: str, tensors: Mapping[str, Any]) -> str | None:
    """The name of a model's parameter in its checkpoint: the same, or, as for the original GPT-2, saved from the
    headless model and so without the first part (``transformer.``)."""
    if parameter in tensors:
        return parameter
    headless = parameter.partition(".")[2]
    return headless if headless in tensors else None


def _unknown_names(adapter: Adapter, base: BaseModel) -> list[str]:
    heads = new_head_names(adapter, base.tensors)
    return [name for name in adapter.edits if name not in heads and not base_name(name, base.tensors)]


def _split(
    edits: Mapping[str, Edit], base: BaseModel, conversions: Conversions
) -> tuple[dict[str, Edit], list[tuple[Fusion, dict[str, Edit]]]]:
    """Edits of checkpoint tensors by name, and those of converted parameters, together with their group."""
    own: dict[str, Edit] = {}
    fused: dict[int, tuple[Fusion, dict[str, Edit]]] = {}
    for name, edit in edits.items():
        parameter = conversions.parameter(name)
        if parameter in conversions.fused or (edit.experts and parameter in conversions.renamed):
            fusion = conversions.fusion(parameter)
            fused.setdefault(id(fusion), (fusion, {}))[1][parameter] = edit
        else:
            checkpoint = conversions.renamed.get(parameter) or base_name(name, base.tensors) or name
            if checkpoint in own:
                raise UserError(f"The adapter changes '{checkpoint}' of the base twice, once as '{name}': not merged.")
            own[checkpoint] = edit
    for fusion, _ in fused.values():
        _check(fusion, own)
    return own, list(fused.values())


def _check(fusion: Fusion, own: Mapping[str, Edit]) -> None:
    for name, source in fusion.sources.items():
        if source.dtype not in FLOATS:
            raise NotReversible(f"'{name}' of the base is {source.dtype}: its experts are merged in memory only.")
        if name in own:
            raise UserError(
                f"The adapter changes '{name}' of the base both by itself ({', '.join(own[name].names)}) and as a part "
                f"of '{fusion.first}': not merged here."
            )


def parameter_tensors(fusion: Fusion) -> dict[str, ParameterTensor]:
    """The parameters of a fusion by name; raises `NotReversible`."""
    one: BaseTensor = next(iter(fusion.sources.values()))
    return {
        name: ParameterTensor(name, one.dtype, tuple(empty.shape), one.file)
        for name, empty in fusion.parameters().items()
    }
