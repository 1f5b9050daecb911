"""Parameters whose names or layout in memory are not those of the checkpoint, as transformers converts them at load.

Most are only renamed. Others are made of several tensors (the experts of a layer in one parameter) or are a part of
one. transformers converts both ways, at load and at save; its own operations are used here, one parameter at a time, so
that what is written has the base's own names, shapes and layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.export.bases.read import BaseModel, BaseTensor
from hf_recipes.export.meta_model import meta_model


class NotReversible(UserError):
    """A conversion that transformers cannot undo as it was: what it makes cannot be written under the base's names."""


@dataclass(frozen=True, eq=False)
class Fusion:
    """Checkpoint tensors and the parameters they become; for one that is only renamed, one of each.

    `patterns` says for each source by which of the converter's patterns it was found; `converter` is None for a
    renaming. `model` is on the meta device and knows which conversions the checkpoint took.
    """

    model: Any
    first: str
    sources: dict[str, BaseTensor]
    patterns: dict[str, str]
    converter: Any = None

    def forward(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Checkpoint tensors by name → parameters by name, in the dtype of the tensors."""
        if self.converter is None:
            return {self.first: next(iter(tensors.values()))}
        converter = deepcopy(self.converter)
        for name, pattern in self.patterns.items():
            converter.add_tensor(self.first, name, pattern, tensors[name])
        made = converter.convert(self.first, model=self.model, config=self.model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def backward(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The opposite of `forward`, as `save_pretrained` does it.

        Raises:
            NotReversible: other names or shapes come out than the checkpoint has.
        """
        if self.converter is None:
            return {next(iter(self.sources)): parameters[self.first]}
        from transformers.core_model_loading import revert_weight_conversion

        made = revert_weight_conversion(self.model, dict(parameters))
        renamed = {own: made[name] for name in made for own in self.sources if _same_name(name, own)}
        shapes = {name: tuple(value.shape) for name, value in renamed.items()}
        if len(made) != len(renamed) or shapes != {name: source.shape for name, source in self.sources.items()}:
            raise NotReversible(
                f"'{self.first}' is made of {len(self.sources)} tensors of '{next(iter(self.sources.values())).file}' "
                "by a conversion that transformers cannot undo: this base is merged in memory only."
            )
        return {name: renamed[name].contiguous() for name in self.sources}

    def parameters(self) -> dict[str, Tensor]:
        """The parameters without values, on the meta device; raises `NotReversible` as `backward`."""
        empty = {name: torch.empty(source.shape, device="meta") for name, source in self.sources.items()}
        try:
            made = self.forward(empty)
            self.backward(made)
        except (ValueError, RuntimeError, KeyError, NotImplementedError, AttributeError, TypeError) as error:
            if isinstance(error, NotReversible):
                raise
            raise NotReversible(
                f"'{self.first}' is made by a conversion of transformers that cannot be followed one parameter at a "
                f"time ({first_line(error)}): this base is merged in "
                "memory only."
            ) from None
        return made


def _same_name(one: str, other: str) -> bool:
    """Whether two checkpoint names are the same, or differ only in the first part (``model.``) that one lacks."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


@dataclass(frozen=True, eq=False)
class Conversions:
    """By parameter name: the checkpoint tensor it is, or what it is made of together with others."""

    model: Any
    transforms: list[Any]
    renamed: dict[str, str]
    fused: dict[str, Fusion]
    tensors: dict[str, BaseTensor]

    def parameter(self, name: str) -> str:
        """The name in memory of what an adapter of an older transformers calls `name`."""
        if name in self.renamed or name in self.fused:
            return name
        return _in_memory(name, self.transforms, self.model.base_model_prefix, self.model.state_dict())[0]

    def fusion(self, parameter: str) -> Fusion:
        """How a parameter is made, be it of one tensor alone."""
        if parameter in self.fused:
            return self.fused[parameter]
        name = self.renamed[parameter]
        return Fusion(self.model, parameter, {name: self.tensors[name]}, {})


def read_conversions(base: BaseModel) -> Conversions:
    """Ask transformers how it reads the tensors of `base`, by their names alone.

    Follows `transformers.core_model_loading.convert_and_load_state_dict_in_model`.

    Raises:
        UserError: transformers has no class for this model.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import dot_natural_key

    model = meta_model(base)
    transforms = get_model_conversion_mapping(model)
    known = model.state_dict()
    renamed: dict[str, str] = {}
    fusions: dict[str, Fusion] = {}
    for name in sorted(base.tensors, key=dot_natural_key):
        parameter, pattern = _in_memory(name, transforms, model.base_model_prefix, known)
        if parameter not in known:
            continue  # transformers leaves it out; it is copied as it is
        if pattern is None:
            renamed.setdefault(parameter, name)
            continue
        converter = next(each for each in _converters(transforms) if pattern in each.source_patterns)
        fusion = fusions.setdefault(parameter, Fusion(model, parameter, {}, {}, converter))
        fusion.sources[name], fusion.patterns[name] = base.tensors[name], pattern
    # What `revert_weight_conversion` undoes: only what this checkpoint took.
    model._weight_conversions = [transform for transform in transforms if transform.was_used()]
    fused = {target: fusion for fusion in fusions.values() for target in _targets(fusion)}
    return Conversions(model, transforms, renamed, fused, base.tensors)


def _targets(fusion: Fusion) -> list[str]:
    """The parameters that a converter makes."""
    patterns = fusion.converter.target_patterns
    return [fusion.first] if len(patterns) == 1 and "*" not in patterns[0] else list(fusion.parameters())


def _converters(transforms: list[Any]) -> list[Any]:
    from transformers.core_model_loading import WeightConverter

    return [each for each in transforms if isinstance(each, WeightConverter)]


def _in_memory(name: str, transforms: list[Any], prefix: str, known: Mapping[str, Tensor]) -> tuple[str, str | None]:
    """The parameter that a checkpoint tensor goes to, and the pattern of the converter that takes it there."""
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    parameter, pattern = rename_source_key(name, renamings, _converters(transforms), prefix, known)
    if parameter not in known and name in known:
        return rename_source_key(name, [], [], prefix, known)
    return parameter, pattern
