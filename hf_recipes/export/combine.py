"""Several adapters of one base, read as if they were one: their edits of each parameter, weighted and combined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import TensorEntry
from hf_recipes.export.adapter import Adapter, read_adapter
from hf_recipes.export.combination import Combination, Combined, Stacked, Summed
from hf_recipes.export.edits import Edit
from hf_recipes.export.pairs import LoraPair, StoredTensor


@dataclass(frozen=True)
class _Part:
    """One adapter's edit of a parameter."""

    edit: Edit
    weight: float
    adapter: Path


def read_adapters(
    directories: Sequence[Path], combination: Combination | None = None, *, base_given: bool = False
) -> Adapter:
    """Read the headers of one or several PEFT adapters as one adapter.

    With ``linear``, the updates of a parameter become one `LoraPair` of the summed rank, so everything after this works
    as for one adapter; with another method they become a `Combined`. What is no update but a value (modules trained in
    full, token rows, DoRA, (IA)³) passes if only one adapter touches the parameter and its weight is 1.

    Args:
        directories: of the adapters; the first one's config (and later its tokenizer) stands for all.
        combination: how, and with which weights; by default their plain sum.
        base_given: the base is named by the user, so that the adapters may name different ones (copies of it).

    Returns:
        The first adapter's directory and config, the tensors of all, and the edits of all.

    Raises:
        UserError: as `read_adapter`; weights that are not as many as adapters; adapters of different bases or tasks;
            adapters whose edits cannot be put together, or with a weight that has no meaning for them; each named.
    """
    rule = combination or Combination()
    weights = rule.weights or (1.0,) * len(directories)
    if len(weights) != len(directories):
        raise UserError(f"weights: {len(weights)} for {len(directories)} adapters; give one for each.")
    if repeated := [
        place for place in directories if [other.resolve() for other in directories].count(place.resolve()) > 1
    ]:
        raise UserError(f"{repeated[0]} is given twice: give it once, with the sum of its weights.")
    adapters = [read_adapter(directory) for directory in directories]
    if len(adapters) == 1 and weights == (1.0,) and rule.is_sum:
        return adapters[0]
    for adapter in adapters:
        if adapter.config.get("target_parameters"):
            raise UserError(
                f"{adapter.directory} adapts bare parameters (fused experts, target_parameters), which are merged one "
                "adapter at a time and with the weight 1: merge it first, and the others into the result."
            )
    _check_together(adapters, base_given)
    return Adapter(
        adapters[0].directory,
        _config(adapters),
        _entries(adapters),
        _edits(list(zip(adapters, weights, strict=True)), rule),
    )


def _check_together(adapters: Sequence[Adapter], base_given: bool) -> None:
    first = adapters[0]
    for key, cure in (("base_model_name_or_path", "name the one to merge into with --base"), ("task_type", "")):
        if base_given and cure:
            continue
        for other in adapters[1:]:
            one, two = first.config.get(key), other.config.get(key)
            if one != two and (cure or (one and two)):
                raise UserError(
                    f"{first.directory} and {other.directory} have different {key} ('{one}' and '{two}'): "
                    f"{cure or 'adapters of different tasks make no one model'}."
                )


def _config(adapters: Sequence[Adapter]) -> dict[str, Any]:
    """The first one's; PEFT sets `fan_in_fan_out` only where it found a `Conv1D`."""
    flipped = any(adapter.config.get("fan_in_fan_out") for adapter in adapters)
    return {**adapters[0].config, "fan_in_fan_out": flipped}


def _entries(adapters: Sequence[Adapter]) -> dict[str, TensorEntry]:
    """All tensors, by names that tell the adapters apart."""
    if len(adapters) == 1:
        return adapters[0].entries
    return {f"{name} of {adapter.directory}": entry for adapter in adapters for name, entry in adapter.entries.items()}


def _edits(weighted: Sequence[tuple[Adapter, float]], rule: Combination) -> dict[str, Edit]:
    parts: dict[str, list[_Part]] = {}
    for adapter, weight in weighted:
        for parameter, edit in adapter.edits.items():
            parts.setdefault(parameter, []).append(_Part(edit, weight, adapter.directory))
    _refuse_scaled_bias(parts)
    return {parameter: combine_edits(parameter, given, rule) for parameter, given in parts.items()}


def _refuse_scaled_bias(parts: Mapping[str, Sequence[_Part]]) -> None:
    """A vector on a layer's outputs multiplies its bias too, of which the (IA)³ adapter itself says nothing."""
    for parameter, given in parts.items():
        scales = [part for part in given if part.edit.scaling and not part.edit.scaling.of_inputs]
        bias = f"{parameter.removesuffix('weight')}bias"
        if scales and (others := parts.get(bias)):
            _refuse_clash(bias, [scales[0], others[0]], "(IA)³")


def combine_edits(parameter: str, given: Sequence[_Part], rule: Combination) -> Edit:
    """One edit out of those of several adapters.

    Args:
        parameter: its in-memory name.
        given: the edits, with their weights and adapters.
        rule: how to combine sums.

    Raises:
        UserError: they cannot be put together.
    """
    # What is taken away is taken from the model given, not from the base that the adapter has a copy of.
    base = None if all(part.weight < 0 for part in given) else _one_base(parameter, given)
    names = [name for part in given for name in part.edit.names]
    trained = [part for part in given if part.edit.is_trained]
    if not trained:
        return Edit(base=base, names=names)
    for part in trained:
        if kind := _not_a_sum(part.edit):
            if len(trained) > 1:
                _refuse_clash(parameter, [part, next(other for other in trained if other is not part)], kind)
            if part.weight != 1:
                raise UserError(
                    f"'{parameter}' of {part.adapter} is {kind}, which is no sum, so a weight of {part.weight:g} has "
                    "no meaning for it: give this adapter the weight 1."
                )
            return replace(part.edit, base=base, names=names)
    if not rule.is_sum:
        return Edit(base=base, combined=_combined(parameter, trained, rule), names=names)
    pairs = [(part.edit.lora, part) for part in trained if part.edit.lora]
    biases = [(*part.edit.bias, part.weight) for part in trained if part.edit.bias]
    return Edit(
        base=base,
        lora=_sum_of_pairs(parameter, pairs) if pairs else None,
        bias=_sum_of_biases(parameter, biases, trained) if biases else None,
        names=names,
    )


def _one_base(parameter: str, given: Sequence[_Part]) -> TensorEntry | None:
    """The base's own value, which adapters of an extended vocabulary save along; all must have the same."""
    saved = [part for part in given if part.edit.base]
    for part in saved[1:]:
        if part.edit.base.read() != saved[0].edit.base.read():  # type: ignore[union-attr]
            raise UserError(
                f"{saved[0].adapter} and {part.adapter} hold different values of the base for '{parameter}': they were "
                "trained on different bases or extended the vocabulary differently."
            )
    return saved[0].edit.base if saved else None


def _not_a_sum(edit: Edit) -> str | None:
    """What makes the edit something else than an update that is added; None for updates."""
    if edit.value:
        return "trained in full"
    if edit.rows:
        return "trained token rows"
    if edit.scaling:
        return "a vector of (IA)³"
    return "DoRA" if edit.lora and edit.lora.magnitude else None


def _refuse_clash(parameter: str, parts: Sequence[_Part], kind: str) -> None:
    raise UserError(
        f"{parts[0].adapter} and {parts[1].adapter} both change '{parameter}', one of them by {kind}, which cannot be "
        "added to another change: merge without one of them."
    )


def _sum_of_pairs(parameter: str, pairs: Sequence[tuple[LoraPair, _Part]]) -> LoraPair:
    first, part = pairs[0]
    if len(pairs) == 1:
        return replace(first, scale=first.scale * part.weight)
    _check_shapes(parameter, [(pair.outputs_inputs + pair.kernel, part) for pair, part in pairs])
    ones, factors = (1.0,) * len(pairs), tuple(pair.scale * part.weight for pair, part in pairs)
    # The factors go to the half that has the weight's rows, so that a tied head's stack equals its embedding's.
    a = Stacked(tuple(pair.a for pair, _ in pairs), factors if first.embedding else ones, dimension=0)
    b = Stacked(tuple(pair.b for pair, _ in pairs), ones if first.embedding else factors, dimension=1)
    return LoraPair(a, b, 1.0, first.embedding)


def _sum_of_biases(
    parameter: str, biases: Sequence[tuple[StoredTensor, float, float]], parts: Sequence[_Part]
) -> tuple[StoredTensor, float]:
    vector, scale, weight = biases[0]
    if len(biases) == 1:
        return vector, scale * weight
    _check_shapes(parameter, [(bias[0].shape, part) for bias, part in zip(biases, parts, strict=True)])
    return Summed(tuple(bias[0] for bias in biases), tuple(scale * weight for _, scale, weight in biases)), 1.0


def _combined(parameter: str, parts: Sequence[_Part], rule: Combination) -> Combined:
    weights = tuple(part.weight for part in parts)
    pairs = tuple(part.edit.lora for part in parts if part.edit.lora)
    biases = tuple(part.edit.bias for part in parts if part.edit.bias)
    shapes = [pair.outputs_inputs + pair.kernel for pair in pairs] or [bias[0].shape for bias in biases]
    _check_shapes(parameter, list(zip(shapes, parts, strict=True)))
    return Combined(parameter, pairs or biases, weights, rule)


def _check_shapes(parameter: str, shapes: Iterable[tuple[tuple[int, ...], _Part]]) -> None:
    (first, one), *others = shapes
    for shape, other in others:
        if shape != first:
            raise UserError(
                f"{one.adapter} makes {list(first)} of '{parameter}' and {other.adapter} {list(shape)}: they belong to "
                "different bases."
            )
