"""A classification head that training put on a language model: only the adapter has it, and it makes the merged model
one of another class than the base."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.export.adapter import Adapter
from hf_recipes.export.bases.read import BaseModel
from hf_recipes.export.companions import token_id

# PEFT's task types → transformers' tables of model classes.
_CLASSES = {
    "SEQ_CLS": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "TOKEN_CLS": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
}
_LANGUAGE_HEADS = ("lm_head", "embed_out", "output")


def new_head_names(adapter: Adapter, base_tensors: Container[str]) -> list[str]:
    """Parameters that a classifier's adapter holds whole and the base has not (``score.weight``)."""
    if adapter.config.get("task_type") not in _CLASSES:
        return []
    return [name for name, edit in adapter.edits.items() if edit.value and name not in base_tensors]


def with_head(base: BaseModel, adapter: Adapter, run: Mapping[str, Any]) -> BaseModel:
    """The base as its classifier: class, labels and padding token in its config, the language head and a head of other
    labels left out. The base itself when the adapter brings no head.

    Args:
        base: as read.
        adapter: as read.
        run: run.json, whose `labels` (names in order) are used if there are as many as the head has rows.

    Raises:
        UserError: transformers has no such class for this kind of model.
    """
    replaced = _other_heads(base, adapter)
    kept = {name: tensor for name, tensor in base.tensors.items() if name not in replaced}
    heads = new_head_names(adapter, kept)
    if not heads:
        return base
    dropped = [name for name in kept if name.split(".")[0] in _LANGUAGE_HEADS]
    if dropped:
        logger.info("A classifier has no language head: %s of the base left out.", ", ".join(dropped))
    config = json.loads(json.dumps(base.config))
    config["architectures"] = [_class_name(adapter, base)]
    if config.get("pad_token_id") is None:  # without it such a model takes no batch of more than one row
        config["pad_token_id"] = token_id(adapter.directory, "pad_token")
    _set_labels(config, adapter.edits[heads[0]].value.shape[0], run)  # type: ignore[union-attr]
    tensors = {name: tensor for name, tensor in kept.items() if name not in dropped}
    return replace(base, config=config, tensors=tensors)


def _other_heads(base: BaseModel, adapter: Adapter) -> set[str]:
    """Heads of a base that is a classifier already, for another number of labels."""
    if adapter.config.get("task_type") not in _CLASSES:
        return set()
    heads = ("score", "classifier")
    values = {name: edit.value for name, edit in adapter.edits.items() if edit.value and name.split(".")[0] in heads}
    return {name for name, value in values.items() if name in base.tensors and base.tensors[name].shape != value.shape}


def _class_name(adapter: Adapter, base: BaseModel) -> str:
    from transformers.models.auto import modeling_auto

    task, kind = adapter.config["task_type"], base.config.get("model_type")
    name = getattr(modeling_auto, _CLASSES[task]).get(kind)
    if name is None:
        raise UserError(f"{adapter.directory} is a {task} adapter, but transformers has no such class for '{kind}'.")
    return name


def _set_labels(config: dict[str, Any], count: int, run: Mapping[str, Any]) -> None:
    labels = run.get("labels")
    if not isinstance(labels, list) or len(labels) != count:
        labels = [f"LABEL_{number}" for number in range(count)]
    config["id2label"] = {str(number): label for number, label in enumerate(labels)}
    config["label2id"] = {label: number for number, label in enumerate(labels)}
    config.pop("num_labels", None)
