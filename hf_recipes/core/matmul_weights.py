"""Count a live model's weights by what a token costs (see `MatmulWeights`)."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import nn

from hf_recipes.core.flops import MatmulWeights
from hf_recipes.core.wrapped import base_of

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def matmul_weights(model: Any) -> MatmulWeights:
    """Walk the modules in the order they are registered, which in decoders is the order of the forward pass.

    Counts real shapes: adapters, grouped queries and 4-bit weights (as what they stand for) included. Fused experts,
    whose weights have three dimensions, count by the share that a token meets.
    """
    head = model.get_output_embeddings()
    active = _active_share(model.config.get_text_config())
    forward = input_gradient = weight_gradient = 0.0
    flows = False  # whether something trained came before, so that a gradient must be passed on
    for name, module in model.named_modules():
        if "original_module" in name.split("."):  # PEFT keeps it beside its trained copy, unused
            continue
        for parameter in module.parameters(recurse=False):
            shape = _shape(parameter)
            if module is head or isinstance(module, nn.Embedding) or len(shape) < 2:
                continue
            count = prod(shape) * (active if len(shape) == 3 else 1.0)
            forward += count
            input_gradient += count if flows else 0.0
            weight_gradient += count if parameter.requires_grad else 0.0
        if module is not head:
            flows |= any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    width, layers, gradient_layers = _attention(model)
    return MatmulWeights(
        forward,
        input_gradient,
        weight_gradient,
        float(prod(_shape(head.weight))),
        flows,
        head.weight.requires_grad,
        width,
        layers,
        gradient_layers,
    )


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    state = getattr(parameter, "quant_state", None)
    # ZeRO-3 shows empty tensors and keeps the shape beside them.
    return tuple(getattr(parameter, "ds_shape", parameter.shape) if state is None else state.shape)


def _active_share(config: Any) -> float:
    experts = next((getattr(config, name) for name in _EXPERTS if getattr(config, name, None)), None)
    return config.num_experts_per_tok / experts if experts else 1.0


def _attention(model: Any) -> tuple[int, int, int]:
    """(heads × head size, layers, layers through which a gradient flows: those from the first trained one on)."""
    config = model.config.get_text_config()
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = config.num_hidden_layers
    if any(parameter.requires_grad for parameter in model.get_input_embeddings().parameters()):
        first = 0
    else:
        decoder_layers = getattr(decoder_of(model), "layers", [])
        trained = (any(parameter.requires_grad for parameter in layer.parameters()) for layer in decoder_layers)
        first = next((place for place, is_trained in enumerate(trained) if is_trained), layers)
    return config.num_attention_heads * head_size, layers, layers - first


def decoder_of(model: Any) -> nn.Module:
    """The part of a (PEFT) model that gives hidden states, without the head."""
    base = base_of(model)
    return base.get_decoder() if hasattr(base, "get_decoder") else base.base_model
