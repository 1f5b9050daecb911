"""A few answers of the model when it was saved: who loads the checkpoint later can see that it still gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from hf_recipes.checkpoints.live import is_whole
from hf_recipes.core.log import logger
from hf_recipes.core.random_state import random_state_kept
from hf_recipes.core.wrapped import base_of

_IDS = 16
_PLACES = 32
_STEP = 7919  # a prime, so that the ids are spread over any vocabulary


def take_probe(model: nn.Module) -> dict[str, Any] | None:
    """Run one forward pass over fixed ids, in evaluation mode, without autocast and without gradients.

    Nothing of it is left behind: modes, random states and the hooks on the model itself do not notice. No collective
    is called.

    Args:
        model: unwrapped (of DDP, the module inside).

    Returns:
        ``input_ids``; ``places`` and, as fp32 numbers, ``logits`` of the last position at those places of the
        vocabulary; ``dtype`` of the weights; ``quantization`` (its method, or None). None where the model is not whole
        in this process, or does not answer to ids alone.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile: another mode would compile it once more
    ids = _fixed_ids(model)
    if ids is None or not is_whole(model):
        return None
    try:
        logits = _last_logits(model, ids)
    except Exception as error:  # an encoder-decoder, a model of images: they ask for more than ids
        logger.debug("No probe of the model was kept: %s: %s", type(error).__name__, error)
        return None
    if logits is None:
        return None
    places = _spread(_PLACES, logits.numel())
    return {
        "input_ids": ids,
        "places": places,
        "logits": [float(value) for value in logits[places].tolist()],
        "dtype": str(_table(model).dtype).removeprefix("torch."),
        "quantization": quantization_of(model),
    }


def compare_probe(probe: dict[str, Any], logits: Sequence[float] | Tensor) -> float:
    """The largest absolute difference between a probe's logits and those that a loaded model gives at the same places;
    NaN where any is not a number."""
    given = torch.as_tensor(logits, dtype=torch.float64)
    kept = torch.tensor([float(value) for value in probe["logits"]], dtype=torch.float64)
    return float((given - kept).abs().max())


def answer_probe(model: nn.Module, probe: dict[str, Any]) -> list[float]:
    """The logits of a loaded model for a probe, at its places, computed as the probe was."""
    logits = _last_logits(model, probe["input_ids"])
    if logits is None:
        raise ValueError("the model gives no logits")
    return [float(value) for value in logits[probe["places"]].tolist()]


def quantization_of(model: nn.Module) -> str | None:
    """The method by which the model's (or its adapter's base's) weights are quantised, such as "bitsandbytes"."""
    config = getattr(getattr(base_of(model), "config", None), "quantization_config", None)
    method = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
    return None if method is None else str(getattr(method, "value", method))


def _fixed_ids(model: Any) -> list[int] | None:
    """Ids that the model can take: on a GPU one beyond its tables would end the process's use of the device."""
    config = getattr(base_of(model), "config", None)
    if config is None or not hasattr(model, "get_input_embeddings"):
        return None
    try:
        embeddings = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    table = getattr(embeddings, "weight", None)
    if not isinstance(table, Tensor) or table.ndim != 2:
        return None
    positions = getattr(config, "max_position_embeddings", None) or 2 * _IDS
    count = max(1, min(_IDS, positions // 2))
    return [(place * _STEP + 1) % table.shape[0] for place in range(count)]


def _last_logits(model: nn.Module, ids: list[int]) -> Tensor | None:
    """The logits at the last position (of a classifier: all it gives), in fp32 on the CPU."""
    device = _table(model).device
    # Accelerate's autocast lies around `forward`; hooks on the model belong to the training.
    forward = getattr(model, "_original_forward", model.forward)
    with random_state_kept(), _evaluating(model), torch.no_grad(), torch.autocast(device.type, enabled=False):
        output = forward(input_ids=torch.tensor([ids], device=device))
    logits = getattr(output, "logits", None)
    return logits[0].reshape(-1, logits.shape[-1])[-1].float().cpu() if isinstance(logits, Tensor) else None


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards for each module the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _spread(count: int, size: int) -> list[int]:
    """Up to `count` places spread evenly over `size`."""
    count = min(count, size)
    return [place * size // count for place in range(count)]


def _table(model: Any) -> Tensor:
    """The input embeddings: where ids go, and in which dtype the model computes."""
    return cast(Tensor, model.get_input_embeddings().weight)
