"""Which parameters of a model share one tensor, and what an edit of one of them means for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.tensors import TensorEntry
from hf_recipes.export.adapter import Edit, LoraPair
from hf_recipes.export.meta_model import build_on_meta


def tied_parameters(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Parameter → the parameter it is tied to, as transformers ties them, from the model's class on the meta device.

    Args:
        directory: of the base model.
        config: its parsed config.json.

    Raises:
        UserError: the class cannot be built from the config alone (remote code).
    """
    try:
        model = build_on_meta(directory, config)
    except (ValueError, KeyError, OSError) as error:
        raise UserError(
            f"Which weights of '{directory}' are tied cannot be told ({first_line(error)}): an adapter on its "
            "embeddings or head can only be merged for a model class that transformers has."
        ) from None
    return dict(model.all_tied_weights_keys)


def group_edits(members: list[str], edits: Mapping[str, Edit]) -> tuple[dict[str, Edit], bool]:
    """The edit of each member of a tied group, and whether all are still the same, so that one tensor will do.

    What the live adapter computes: a wrapper with LoRA, a vector or a trained copy sits on one module, and the tensor
    under it stays tied; so the other modules keep the base's values. (PEFT's own merge writes into the shared tensor,
    so the update also reaches modules that never saw it, twice where both have one.) Trained token rows are different:
    PEFT lets tied heads follow the embedding's rows.

    Args:
        members: names of the group, the embedding (the source of the tie) first.
        edits: by parameter name.
    """
    given = {name: edits.get(name) or Edit() for name in members}
    underneath = next((edit.base for edit in given.values() if edit.base), None)
    source = given[members[0]]
    result = {}
    for name, edit in given.items():
        follows = edit.rows is None and source.rows is not None
        rows_of = source if follows else edit
        result[name] = replace(edit, base=edit.base or underneath, rows=rows_of.rows, indices=rows_of.indices)
    first, *others = result.values()
    return result, all(_same_edit(first, other) for other in others)


def _same_edit(one: Edit, other: Edit) -> bool:
    same_rows = one.indices == other.indices and _same_tensor(one.rows, other.rows)
    return (
        same_rows
        and one.scaling == other.scaling
        and not (one.combined or other.combined)
        and _same_tensor(one.value or one.base, other.value or other.base)
        and _same_lora(one.lora, other.lora)
    )


def _same_tensor(one: TensorEntry | None, other: TensorEntry | None) -> bool:
    if one is None or other is None or one is other:
        return one is other
    return one.shape == other.shape and torch.equal(one.load(), other.load())


def _same_lora(one: LoraPair | None, other: LoraPair | None) -> bool:
    """With `ensure_weight_tying` PEFT saves the head's pair as the embedding's, transposed and swapped."""
    if one is None or other is None:
        return one is other
    if one.magnitude or other.magnitude or one.scale != other.scale:
        return False
    return all(torch.equal(x, y) for x, y in zip(_as_rows(one), _as_rows(other), strict=True))


def _as_rows(pair: LoraPair) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows of the weight, rank) and (rank, columns)."""
    a, b = pair.a.load(), pair.b.load()
    return (a.T, b.T) if pair.embedding else (b, a)
