"""The gradient norm of each layer: which part of the model an alarm about the whole comes from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import torch

from hf_recipes.callbacks.gradients import total_norm

# "model.layers.3.self_attn.q_proj.weight", with any wrappers before it, belongs to "layers.3".
_LAYER = re.compile(r"(?:^|\.)((?:layers?|h|blocks?|block)\.\d+)\.")


_LEAST_SHARE = 0.05  # of the total square; below it a layer has no part in an alarm


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: its numbered block, else the module that holds it."""
    if match := _LAYER.search(name):
        return match.group(1)
    module = name.rpartition(".")[0]
    return module.rpartition(".")[2] or name


def layer_norms(model: torch.nn.Module, scale: float = 1.0) -> dict[str, float]:
    """Gradient norm by layer, in the order of the model; one sync. Call it on every rank: shards are put together.

    Args:
        scale: every norm is multiplied by it, such as by what a clip divided the gradients by.
    """
    layers: dict[str, list[torch.nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            layers[layer_of(name)].append(parameter)
    if not layers:
        return {}
    norms = torch.stack([total_norm(parameters).float() for parameters in layers.values()])
    return dict(zip(layers, (norms * scale).tolist(), strict=True))


def largest(norms: Mapping[str, float], usual: Mapping[str, float], count: int = 3) -> list[tuple[str, float, float]]:
    """The layers that stand out most: name, norm, and how many times its usual norm that is.

    Without usual norms the share in the total square stands in their place, so that the layers that carry the norm
    come first.
    """
    if usual:
        factors = {name: norm / usual[name] for name, norm in norms.items() if usual.get(name)}
    else:
        total = sum(norm**2 for norm in norms.values()) or 1.0
        factors = {name: norm**2 / total for name, norm in norms.items()}
    names = sorted(factors, key=lambda name: -factors[name])[:count]
    if not usual:
        names = [name for name in names if factors[name] >= _LEAST_SHARE]
    return [(name, norms[name], factors[name]) for name in names]
