"""What a merge will write, decided from headers alone: every adapter tensor placed, every shape checked."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import FLOATS, TensorSpec
from hf_recipes.export.adapter import Adapter, Edit, Scaling
from hf_recipes.export.bases.read import BaseModel, BaseTensor, config_parts
from hf_recipes.export.converted_group import ConvertedGroup
from hf_recipes.export.heads import new_head_names
from hf_recipes.export.output import Output
from hf_recipes.export.placement import Placement, base_name, parameter_tensors, place_in_checkpoint
from hf_recipes.export.ties import group_edits, tied_parameters

# Last names of the modules that have a row for each word.
_VOCABULARY = ("embed_tokens", "lm_head", "wte", "word_embeddings", "embed_in", "embed_out")
# Models of `Conv1D` layers.
_CONV1D_KINDS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp")


@dataclass(frozen=True)
class MergePlan:
    """All tensors of the merged model, in the base's order; `untied` when embeddings and head went apart."""

    outputs: list[Output]
    untied: bool
    vocab_size: int | None

    @property
    def nbytes(self) -> int:
        return sum(output.spec.nbytes for output in self.outputs)

    @property
    def edited(self) -> list[Output]:
        return [output for output in self.outputs if output.edit is not None or output.group is not None]

    def shards(self) -> dict[str, list[Output]]:
        """Outputs by file name, in the base's order."""
        shards: dict[str, list[Output]] = {}
        for output in self.outputs:
            shards.setdefault(output.shard, []).append(output)
        return shards


def plan_merge(adapter: Adapter, base: BaseModel, dtype: str) -> MergePlan:
    """Place every edit of the adapter on a tensor of the base.

    Args:
        adapter, base: read by their headers.
        dtype: safetensors name that all float tensors will have.

    Raises:
        UserError: adapter tensors that fit nothing in the base, or shapes that do not fit; named.
    """
    placement = place_in_checkpoint(adapter, base)
    adapter = placement.adapter
    by_base, extra, untied = _place(adapter, base, placement.renamed)
    transposed = _Transposed(adapter, base)
    groups = _groups(placement, dtype, transposed)
    outputs = []
    for name, source in base.tensors.items():
        if name in groups:
            outputs.append(_grouped(name, source, groups[name], dtype))
            continue
        edits = {name: by_base.get(name), **extra.get(name, {})}
        outputs += [_output(own_name, source, edit, dtype, transposed) for own_name, edit in edits.items()]
    outputs += _new_heads(adapter, base, dtype)
    return MergePlan(outputs, untied, _new_vocab_size(outputs, base))


def _groups(placement: Placement, dtype: str, transposed: _Transposed) -> dict[str, ConvertedGroup]:
    """The group of each checkpoint tensor that is changed through what it is in memory."""
    groups: dict[str, ConvertedGroup] = {}
    for fusion, edits in placement.fused:
        parameters = parameter_tensors(fusion)
        outputs = {
            name: _output(name, parameters[name], edit, dtype, transposed)  # type: ignore[arg-type]
            for name, edit in edits.items()
        }
        groups |= dict.fromkeys(fusion.sources, ConvertedGroup(fusion, outputs))
    return groups


def _grouped(name: str, source: BaseTensor, group: ConvertedGroup, dtype: str) -> Output:
    edit = next(iter(group.outputs.values())).edit
    return Output(TensorSpec(name, dtype, source.shape), source, source.file.name, edit, group=group)


def _place(
    adapter: Adapter, base: BaseModel, renamed: Mapping[str, str]
) -> tuple[dict[str, Edit], dict[str, dict[str, Edit]], bool]:
    """Edits by base tensor; new tensors, by the base tensor they were tied to until now; whether any tie ends."""
    placed: dict[str, Edit] = {}
    extra: dict[str, dict[str, Edit]] = {}
    untied = False
    heads = new_head_names(adapter, base.tensors)
    edits = {name: edit for name, edit in adapter.edits.items() if name not in heads} | _scaled_biases(adapter, base)
    for members in _tied_groups(edits, base, renamed):
        own, same = group_edits(members, edits)
        stored = next(name for member in members if (name := base_name(member, base.tensors)))
        untied |= not same
        for member in members:
            edits.pop(member, None)
            if name := base_name(member, base.tensors):
                placed[name] = own[member]
            elif not same:
                extra.setdefault(stored, {})[member] = own[member]
    unmatched = [
        entry for parameter, edit in edits.items() if not base_name(parameter, base.tensors) for entry in edit.names
    ]
    if unmatched:
        _refuse_unmatched(adapter, base, unmatched)
    placed |= {str(base_name(parameter, base.tensors)): edit for parameter, edit in edits.items()}
    return placed, extra, untied


def _scaled_biases(adapter: Adapter, base: BaseModel) -> dict[str, Edit]:
    """What multiplies a layer's outputs multiplies its bias too, of which the adapter says nothing."""
    biases = {
        f"{parameter.removesuffix('weight')}bias": edit
        for parameter, edit in adapter.edits.items()
        if edit.scaling and not edit.scaling.of_inputs
    }
    return {
        name: Edit(scaling=edit.scaling, names=edit.names)
        for name, edit in biases.items()
        if base_name(name, base.tensors)
    }


def _refuse_unmatched(adapter: Adapter, base: BaseModel, unmatched: list[str]) -> None:
    shown = ", ".join(sorted(unmatched)[:4]) + (", …" if len(unmatched) > 4 else "")
    if all(name.endswith(".lora_B.bias") for name in unmatched):
        raise UserError(
            f"{len(unmatched)} of {len(adapter.entries)} adapter tensors are biases (lora_bias) of layers that have "
            f"none in the base ({shown}), so a merged model has no place for them: use the adapter unmerged, by peft."
        )
    raise UserError(
        f"{len(unmatched)} of {len(adapter.entries)} adapter tensors have no counterpart in the base "
        f"'{base.directory}' ({shown}): the adapter belongs to another base or model class; nothing was merged."
    )


def _tied_groups(edits: Mapping[str, Edit], base: BaseModel, renamed: Mapping[str, str]) -> list[list[str]]:
    """Groups of tied parameters that an edit touches, each with the source of the tie first."""
    may_tie = any(part.get("tie_word_embeddings", True) for part in config_parts(base.config))
    if not may_tie or not any(_touches_vocabulary(name, edit, base) for name, edit in edits.items()):
        return []
    groups: dict[str, list[str]] = {}
    for target, source in tied_parameters(base.directory, base.config).items():
        first = renamed.get(source, source)
        groups.setdefault(first, [first]).append(renamed.get(target, target))
    stored = [group for group in groups.values() if any(base_name(name, base.tensors) for name in group)]
    return [group for group in stored if any(name in edits for name in group)]


def _touches_vocabulary(parameter: str, edit: Edit, base: BaseModel) -> bool:
    """Whether ties may matter: only parameters with a row for each word are ever tied."""
    name = base_name(parameter, base.tensors)
    if name is None or edit.rows or (edit.lora and edit.lora.embedding):
        return True
    return len(base.tensors[name].shape) == 2 and base.tensors[name].shape[0] == base.vocab_size


class _Transposed:
    """Whether a weight is laid out (inputs, outputs): told by its shape, and where both layouts fit by the adapter's
    config, which PEFT corrects for the layers it finds (`Conv1D` or `Linear`) before it saves it, and when it loads it.
    Other programs do not: a config that says so is held against the layers of transformers' class."""

    def __init__(self, adapter: Adapter, base: BaseModel) -> None:
        self.configured = bool(adapter.config.get("fan_in_fan_out"))
        self._task, self._base = adapter.config.get("task_type"), base

    @cached_property
    def _flipped(self) -> Container[str] | None:
        """The base's tensors of `Conv1D` layers; None where transformers has no class to ask."""
        from hf_recipes.export.bases.linear_layers import conv1d_weights, model_of_task

        try:
            return conv1d_weights(model_of_task(self._base.directory, self._task), self._base.tensors)
        except UserError:
            return None

    def _of_square(self, name: str) -> bool:
        may_be = self.configured or self._base.config.get("model_type") in _CONV1D_KINDS
        flipped = self._flipped if may_be else None
        return self.configured if flipped is None else name in flipped

    def __call__(self, name: str, shape: tuple[int, ...], edit: Edit) -> bool:
        pair = edit.lora or (edit.combined.pair if edit.combined else None)
        if pair:
            outputs, inputs = pair.outputs_inputs
            fits = [shape == (outputs, inputs, *pair.kernel), shape == (inputs, outputs)]
            does = f"makes {[outputs, inputs, *pair.kernel]}"
        elif edit.scaling and len(shape) == 2:  # neither a bias nor a convolution
            sizes = reversed(shape) if edit.scaling.of_inputs else shape
            fits = [size == edit.scaling.size for size in sizes]
            does = f"scales {edit.scaling.size} {'inputs' if edit.scaling.of_inputs else 'outputs'}"
        else:
            return False
        if not any(fits):
            raise UserError(
                f"'{name}' of the base has shape {list(shape)}, but the adapter's {', '.join(edit.names)} {does}: it "
                "belongs to another base."
            )
        if pair and pair.embedding:
            return True
        return self._of_square(name) if all(fits) else fits[1]


def _output(name: str, source: BaseTensor, edit: Edit | None, dtype: str, transposed: _Transposed) -> Output:
    spec = TensorSpec(name, dtype if source.dtype in FLOATS else source.dtype, source.shape)
    if edit is None or edit.is_empty:
        return Output(spec, source, source.file.name)
    start = edit.value or edit.base or source
    _check_shape(name, source, start)
    _check_small_parts(name, start, edit)
    if (edit.lora or edit.scaling or edit.combined) and (edit.value or edit.rows):
        raise UserError(f"'{name}' has both an update and trained values ({', '.join(edit.names)}): not merged here.")
    flipped = transposed(name, start.shape, edit)
    return Output(replace(spec, shape=start.shape), source, source.file.name, edit, flipped)


def _new_heads(adapter: Adapter, base: BaseModel, dtype: str) -> list[Output]:
    """The tensors of a classification head, which only the adapter has; they go into the base's last file."""
    last = list(base.tensors.values())[-1].file.name
    outputs = []
    for name in new_head_names(adapter, base.tensors):
        edit = adapter.edits[name]
        assert edit.value, name
        outputs.append(Output(TensorSpec(name, dtype, edit.value.shape), edit.value, last, edit))
    return outputs


def _check_shape(name: str, base: BaseTensor, start: BaseTensor) -> None:
    """A full tensor from the adapter has the base's shape; only the number of words may differ."""
    is_vocabulary = name.removesuffix(".weight").rpartition(".")[2] in _VOCABULARY
    same_but_rows = is_vocabulary and start.shape[1:] == base.shape[1:]
    if start.shape != base.shape and not same_but_rows:
        raise UserError(
            f"'{name}' of the base has shape {list(base.shape)}, but '{start.name}' of the adapter "
            f"{list(start.shape)}: it belongs to another base."
        )


def _check_small_parts(name: str, start: BaseTensor, edit: Edit) -> None:
    fits = True
    if edit.bias:
        fits &= edit.bias[0].shape == start.shape
    if edit.rows:
        fits &= edit.rows.shape[1:] == start.shape[1:] and all(0 <= index < start.shape[0] for index in edit.indices)
    if edit.scaling:
        fits &= _scales(edit.scaling, start.shape)
    if edit.lora and edit.lora.magnitude:
        fits &= prod(edit.lora.magnitude.shape) == edit.lora.outputs_inputs[0]
    if edit.combined and not edit.combined.pair:
        fits &= edit.combined.shape == start.shape
    if not fits:
        raise UserError(
            f"'{name}' of the base has shape {list(start.shape)}, which {', '.join(edit.names)} of the adapter do not "
            "fit: they belong to another base."
        )


def _scales(scaling: Scaling, shape: tuple[int, ...]) -> bool:
    """Whether a vector fits a bias or a convolution, whose groups each have their own inputs. (Of a linear layer only
    the number of dimensions is looked at; `_Transposed` does the rest.)"""
    if len(shape) > 1 and len(shape) != len(scaling.vector.shape):
        return False
    if len(shape) < 2 or (len(shape) > 2 and not scaling.of_inputs):
        return shape[:1] == (scaling.size,)
    if len(shape) == 2:
        return True
    return scaling.size % shape[1] == 0 and shape[0] % (scaling.size // shape[1]) == 0


def _new_vocab_size(outputs: list[Output], base: BaseModel) -> int | None:
    """The size of the vocabulary if training changed it; embeddings and head must agree."""
    resized = [output for output in outputs if output.spec.shape != output.source.shape]
    if not resized:
        return None
    size = resized[0].spec.shape[0]
    for output in outputs:
        leaf = output.spec.name.removesuffix(".weight").rpartition(".")[2]
        if (output in resized or leaf in _VOCABULARY) and output.spec.shape[0] != size:
            raise UserError(
                f"The vocabulary was extended to {size} rows ('{resized[0].spec.name}'), but '{output.spec.name}' has "
                f"{output.spec.shape[0]}: save the adapter with save_embedding_layers=True, or both in modules_to_save."
            )
    return size
