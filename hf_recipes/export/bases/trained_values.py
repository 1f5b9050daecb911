"""A base whose quantised weights have the values that training saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import FLOATS, TensorEntry
from hf_recipes.export.bases.quantized_4bit import Quantized4bit
from hf_recipes.export.bases.quantized_8bit import Quantized8bit
from hf_recipes.export.bases.read import BaseModel
from hf_recipes.export.bases.requantized import Requantized
from hf_recipes.export.bases.trained_quantization import TrainedQuantization


def with_trained_values(base: BaseModel, settings: TrainedQuantization, task_type: str | None) -> BaseModel:
    """`base` with each weight that training quantised replaced by the values training saw.

    Args:
        base: the 16-bit or 32-bit original, as read.
        settings: how it was quantised.
        task_type: of the adapter's config; a classifier's head is another than a language model's.

    Raises:
        UserError: which weights these are cannot be told, or there is none.
    """
    from hf_recipes.export.bases.linear_layers import model_of_task, quantised_weights

    layers = quantised_weights(model_of_task(base.directory, task_type), settings.to_config(), base.tensors)
    if not layers:
        raise UserError(f"bitsandbytes quantises no layer of '{base.directory}': give --base-values original.")
    tensors = {
        name: Requantized(_original(tensor), settings, layers[name]) if name in layers else tensor
        for name, tensor in base.tensors.items()
    }
    logger.info(
        "Base values as training saw them (%s): %d of %d tensors quantised and dequantised.",
        settings,
        len(layers),
        len(tensors),
    )
    return replace(base, tensors=tensors)


def stored_quantised(tensors: Mapping[str, Any]) -> int:
    """How many tensors of a base are stored quantised."""
    return sum(isinstance(tensor, (Quantized4bit, Quantized8bit)) for tensor in tensors.values())


def _original(tensor: Any) -> TensorEntry:
    if not isinstance(tensor, TensorEntry) or tensor.dtype not in FLOATS:
        raise UserError(f"'{tensor.name}' of the base is {tensor.dtype}, no float weight that could be quantised.")
    return tensor
