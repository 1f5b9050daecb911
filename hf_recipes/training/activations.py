"""How much memory activations take from forward to backward: measured on the model, on two short rows, then carried
over to any batch.

What autograd saves is counted as it is saved (`saved_tensors_hooks`), so attention implementation, gated MLPs,
quantised layers, adapters and autocast are all in it, on any device. Per row it grows as a·t + c·t² with the length t
(the square is that of attention without a fused kernel, and of masks), so two lengths give both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_recipes.core.wrapped import body_of

PROBE_TOKENS = (32, 96)


@dataclass(frozen=True)
class ActivationCost:
    """Bytes kept by one row of t tokens: ``per_token · t + per_token_squared · t²``, inside and outside the layers.

    Attributes:
        layers: decoder layers that can be checkpointed.
        hidden_bytes: of one token's hidden state, which a checkpointed layer keeps instead of the rest.
    """

    outside_per_token: float
    outside_per_token_squared: float
    inside_per_token: float
    inside_per_token_squared: float
    layers: int
    hidden_bytes: int

    def outside(self, rows: int, tokens: int) -> float:
        """Bytes that `rows` of `tokens` keep outside the layers (embedding, final norm)."""
        return rows * tokens * (self.outside_per_token + self.outside_per_token_squared * tokens)

    def inside(self, rows: int, tokens: int) -> float:
        """Bytes that `rows` of `tokens` keep inside all layers together."""
        return rows * tokens * (self.inside_per_token + self.inside_per_token_squared * tokens)

    def hidden(self, rows: int, tokens: int) -> float:
        """Bytes of one layer's input."""
        return float(rows * tokens * self.hidden_bytes)


def measure_activations(model: Any, *, packed: bool, autocast_dtype: torch.dtype | None) -> ActivationCost:
    """Measure on the model as the trainer gets it, in training mode; its modes and the random state are put back.

    Args:
        model: on the device it trains on.
        packed: rows carry the positions of two samples each, as packed rows do.
        autocast_dtype: what the trainer autocasts to; None without autocast.
    """
    layers = checkpointable_layers(model)
    short, long = (_saved_bytes(model, layers, tokens, packed, autocast_dtype) for tokens in PROBE_TOKENS)
    outside, inside = (_line_and_square(short[part], long[part]) for part in range(2))
    compute_bytes = (autocast_dtype or model.dtype).itemsize
    hidden = model.config.get_text_config().hidden_size * compute_bytes
    return ActivationCost(*outside, *inside, layers=len(layers), hidden_bytes=hidden)


def checkpointable_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that activation checkpointing acts on."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _line_and_square(short: float, long: float) -> tuple[float, float]:
    """a and c of ``a·t + c·t²`` through both measurements; nothing negative."""
    t_short, t_long = PROBE_TOKENS
    square = max(0.0, (long / t_long - short / t_short) / (t_long - t_short))
    return max(0.0, long / t_long - square * t_long), square


def _saved_bytes(
    model: Any, layers: list[nn.Module], tokens: int, packed: bool, autocast_dtype: torch.dtype | None
) -> tuple[float, float]:
    """Bytes saved (outside, inside the layers) by the forward pass of one row, up to the head."""
    device = next(model.parameters()).device
    inputs = {
        "input_ids": torch.arange(tokens, device=device).remainder(model.config.get_text_config().vocab_size)[None]
    }
    if packed:
        half = torch.arange(tokens // 2, device=device)
        inputs["position_ids"] = torch.cat([half, half])[None]
    counter = _Counter({storage_of(each) for each in (*model.parameters(), *model.buffers())})
    with _as_in_training(model, device.type, autocast_dtype), counter.watching(layers):
        _forward(model, inputs)
    return counter.outside, counter.inside


def _forward(model: Any, inputs: Mapping[str, Tensor]) -> Any:
    # Prefix tuning lives in the wrapper: there the whole model is called, and its logits counted too.
    if getattr(model, "active_peft_config", None) is not None and model.active_peft_config.is_prompt_learning:
        return model(**inputs, use_cache=False)
    return body_of(model)(**inputs, use_cache=False)


class _Counter:
    """Counts each storage that autograd saves, once."""

    def __init__(self, known: set[int]) -> None:
        self._seen = set(known)
        self._depth = 0
        self.outside = self.inside = 0.0
        self._kept: list[Tensor] = []  # a freed storage's address could come again

    def pack(self, tensor: Tensor) -> Tensor:
        address = storage_of(tensor)
        if address not in self._seen:
            self._seen.add(address)
            self._kept.append(tensor.detach())
            size = tensor.untyped_storage().nbytes()
            if self._depth:
                self.inside += size
            else:
                self.outside += size
        return tensor

    @contextmanager
    def watching(self, layers: list[nn.Module]) -> Iterator[None]:
        def enter(*_: Any) -> None:
            self._depth += 1

        def leave(*_: Any) -> None:
            self._depth -= 1

        hooks = [layer.register_forward_pre_hook(enter) for layer in layers]
        hooks += [layer.register_forward_hook(leave) for layer in layers]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor):
                yield
        finally:
            for hook in hooks:
                hook.remove()
            self._kept.clear()


def storage_of(tensor: Tensor) -> int:
    """The address of a tensor's memory, the same for all its views."""
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _as_in_training(model: nn.Module, device: str, autocast_dtype: torch.dtype | None) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        with torch.random.fork_rng(), torch.autocast(device, dtype=autocast_dtype, enabled=autocast_dtype is not None):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
