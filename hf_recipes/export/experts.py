"""LoRA on bare parameters (PEFT's `target_parameters`): the fused experts of a layer, one matrix each.

One pair of matrices serves all experts: ``A`` is (experts·rank, inputs), rank after rank for each expert, and ``B``
(outputs, rank·experts), where the experts alternate (`peft.tuners.lora.layer.ParamWrapper`). Which parameter a pair
belongs to is not in its name: PEFT wraps the parameters of a module one around the other, in the module's order, so the
last one's pair bears the module's name and each one before it has one more ``base_layer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hf_recipes.core.errors import UserError
from hf_recipes.export.algebra import pattern_value, scale_of
from hf_recipes.export.edits import Edit
from hf_recipes.export.pairs import ExpertPair


def wrapped_parameters(model: Any, targets: list[str]) -> dict[str, str]:
    """PEFT's name for the pair of each targeted parameter (``…experts.base_layer``) → the parameter's full name.

    Args:
        model: on the meta device, for the order of the parameters of each module.
        targets: PEFT's `target_parameters`, full names or ends.
    """
    wrapped = {}
    for module_name, module in model.named_modules():
        names = [f"{module_name}.{name}" for name, _ in module.named_parameters(recurse=False)]
        found = [name for name in names if name in targets or name.endswith(tuple(f".{target}" for target in targets))]
        for place, name in enumerate(found):
            wrapped[module_name + ".base_layer" * (len(found) - 1 - place)] = name
    return wrapped


def with_parameters(edits: Mapping[str, Edit], config: Mapping[str, Any], model: Any) -> dict[str, Edit]:
    """`edits` with the pairs of wrapped parameters under those parameters' names, with their own rank and factor.

    Args:
        edits: as `read_edits` makes them, each pair as if it were of a linear layer.
        config: of the adapter.
        model: the base on the meta device.

    Raises:
        UserError: shapes that do not fit the parameter or the configured rank.
    """
    wrapped = wrapped_parameters(model, list(config.get("target_parameters") or ()))
    result: dict[str, Edit] = {}
    for name, edit in edits.items():
        module = name.removesuffix(".weight")
        if edit.lora is None:
            result[name] = edit
        elif module in wrapped:
            result[wrapped[module]] = _with_own_rank(edit, wrapped[module], config, model)
        else:
            _check_rank(edit, module, config, 1)
            result[name] = edit
    return result


def _with_own_rank(edit: Edit, parameter: str, config: Mapping[str, Any], model: Any) -> Edit:
    pair, shape = edit.lora, tuple(model.get_parameter(parameter).shape)
    assert pair
    experts = shape[0] if len(shape) == 3 else 1
    rank = _check_rank(edit, parameter, config, experts)
    alpha = pattern_value(config.get("alpha_pattern") or {}, parameter, config.get("lora_alpha", 8))
    scale = scale_of(alpha, rank, bool(config.get("use_rslora")))
    if len(shape) != 3:
        return replace(edit, lora=replace(pair, scale=scale))
    transposed = bool(getattr(model.get_submodule(parameter.rpartition(".")[0]), "is_transposed", False))
    outputs, inputs = shape[:0:-1] if transposed else shape[1:]
    if pair.outputs_inputs != (outputs, inputs):
        raise UserError(
            f"'{parameter}' of the base has shape {list(shape)}, but the adapter's {', '.join(edit.names)} makes "
            f"{list(pair.outputs_inputs)} for each expert: it belongs to another base."
        )
    return replace(edit, lora=None, experts=ExpertPair(pair.a, pair.b, scale, experts, transposed))


def _check_rank(edit: Edit, name: str, config: Mapping[str, Any], experts: int) -> int:
    """The configured rank, times the number of experts, is what the pair has."""
    assert edit.lora
    rank = int(pattern_value(config.get("rank_pattern") or {}, name, config.get("r", 8)))
    if edit.lora.a.shape[0] != rank * experts:
        of_experts = f" for each of {experts} experts" if experts > 1 else ""
        raise UserError(
            f"'{edit.lora.a.name}' {list(edit.lora.a.shape)} is not of rank {rank}{of_experts}, as adapter_config.json "
            f"and the base give it for '{name}': they do not belong together."
        )
    return rank


def merge_experts(start: Tensor, pair: ExpertPair, dtype: torch.dtype) -> Tensor:
    """``W_e + scale · B_e·A_e`` for each expert ``e``, in fp32 and rounded once; one expert in fp32 at a time.

    Over a 16-bit base PEFT rounds the update before it adds it; here there is one rounding for all.

    Args:
        start: (experts, …, …), any float dtype; not changed.
        pair: what to add.
        dtype: of the result.
    """
    merged = torch.empty(start.shape, dtype=dtype)
    for expert, (a, b) in enumerate(_halves(pair)):
        # The operations of PEFT's `einsum`, which multiplies all experts in one batch.
        change = (a.T @ b.T if pair.transposed else b @ a).mul_(pair.scale)
        merged[expert] = change.add_(start[expert]).to(dtype)
    return merged


def expected_experts(start: Tensor, pair: ExpertPair) -> tuple[Tensor, Tensor]:
    """The same by another route, one fused product and sum for each expert, in fp32; and the room for the error of fp32
    sums: |Σ b·a| ≤ ‖b‖·‖a‖ bounds the terms of every product."""
    value, room = torch.empty(start.shape), torch.empty(start.shape)
    slack = torch.finfo(torch.float32).eps * (pair.a.shape[0] // pair.experts + 64)
    for expert, (a, b) in enumerate(_halves(pair)):
        left, right = (a.T, b.T) if pair.transposed else (b, a)
        torch.addmm(start[expert].float(), left, right, alpha=pair.scale, out=value[expert])
        reach = abs(pair.scale) * left.norm(dim=1)[:, None] * right.norm(dim=0)[None, :].max()
        room[expert] = slack * (value[expert].abs() + reach)
    return value, room


def _halves(pair: ExpertPair) -> Iterator[tuple[Tensor, Tensor]]:
    """``A_e`` (rank, inputs) and ``B_e`` (outputs, rank) of each expert, in fp32."""
    a, b = pair.a.load().float(), pair.b.load().float()
    by_expert = a.reshape(pair.experts, -1, a.shape[-1]), b.reshape(b.shape[0], -1, pair.experts).permute(2, 0, 1)
    yield from zip(*by_expert, strict=True)
