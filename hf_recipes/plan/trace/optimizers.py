"""The optimizer the Trainer would build, and its states on fake tensors."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from hf_recipes.core.errors import UserError, first_line


def build_optimizer(name: str, model: Any, parameters: Iterable[Tensor], device: str) -> Any:
    """The optimizer that ``optim: name`` means to transformers.

    Args:
        name: the Trainer's ``optim``.
        model: some optimizers choose layers by it.
        parameters: what it updates.
        device: that is planned for: on accelerators torch takes its ``foreach`` implementations, which hold more.

    Raises:
        UserError: transformers has none of this name, or not the package it is in.
    """
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS, OptimizerContext

    arguments = SimpleNamespace(
        optim=name, optim_args=None, learning_rate=1e-4, weight_decay=0.0, optim_target_modules=None
    )
    context = OptimizerContext(
        args=arguments,
        model=model,
        optimizer_kwargs={"lr": 1e-4},
        adam_kwargs={"betas": (0.9, 0.999), "eps": 1e-8},
        optim_args={},
    )
    handler = _OPTIMIZER_HANDLERS.get(name)
    if handler is None:
        raise UserError(f"optim: '{name}' is no optimizer of this transformers version: see its list of optimizers.")
    try:
        kind, values = handler(context)
    except (ImportError, ValueError) as error:
        raise UserError(f"optim: '{name}' cannot be traced here ({first_line(error)}).") from None
    if device != "cpu" and kind.__module__.startswith("torch.optim") and not values.get("fused"):
        values = {**values, "foreach": True}
    optimizer = kind(list(parameters), **values)
    if values.get("optim_bits") == 8:
        _embeddings_in_32_bits(optimizer, model)
    return optimizer


def _embeddings_in_32_bits(optimizer: Any, model: nn.Module) -> None:
    """As the Trainer asks bitsandbytes to; here of this optimizer alone, not of its manager for the whole process."""
    wide = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    plain = optimizer.get_config

    def get_config(group_index: int, index: int, group: Any) -> Any:
        config = plain(group_index, index, group)
        return {**config, "optim_bits": 32} if id(group["params"][index]) in wide else config

    optimizer.get_config = get_config


def make_states(optimizer: Any) -> None:
    """Let the optimizer make its states, by a step on gradients that have only a shape."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def state_tensors(optimizer: Any) -> list[Tensor]:
    """All tensors that the optimizer keeps."""
    return [each for state in optimizer.state.values() for each in state.values() if isinstance(each, Tensor)]
