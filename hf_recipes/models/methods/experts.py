"""Mixtures of experts: where experts and routers are, and what a method trains of them.

Everything is found from the model's structure: experts stand in a module called ``experts`` (or of a class named so),
and the routers beside it. `transformers` 5 keeps all experts of a layer in one 3-D parameter, which is no `nn.Linear`,
so LoRA reaches it through ``target_parameters`` only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.log import logger
from hf_recipes.models.methods.targets import ALL_LINEAR, ending_with, fully_matching

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

ALL_EXPERTS = "all-experts"


@dataclass(frozen=True)
class Experts:
    """Full names: `modules` hold the experts, `routers` are modules that choose or weigh them, `weights` are the fused
    3-D parameters (none where experts are separate linear layers)."""

    modules: tuple[str, ...]
    routers: tuple[str, ...]
    weights: tuple[str, ...]


@dataclass(frozen=True)
class LoraTargets:
    """What to hand to `peft.LoraConfig` as ``target_modules``, ``target_parameters`` and ``modules_to_save``."""

    modules: str | list[str] | None
    parameters: list[str] | None
    modules_to_save: list[str] | None


def find_experts(model: nn.Module) -> Experts:
    """Experts and routers of `model`; all empty for a dense one."""
    modules = dict(model.named_modules())
    holders = [
        n for n, m in modules.items() if n.rsplit(".", 1)[-1] == "experts" or type(m).__name__.endswith("Experts")
    ]
    blocks = dict.fromkeys(name.rpartition(".")[0] for name in holders)
    routers = [
        f"{block}.{child}" if block else child
        for block in blocks
        for child, _ in modules[block].named_children()
        if child == "gate" or child.endswith("expert_gate") or "router" in child
    ]
    weights = [
        f"{holder}.{name}"
        for holder in holders
        for name, parameter in modules[holder].named_parameters(recurse=False)
        if parameter.ndim == 3
    ]
    return Experts(tuple(holders), tuple(routers), tuple(weights))


def set_router_training(model: nn.Module, train: bool, *, among: Collection[str] | None = None) -> None:
    """For full and partial fine-tuning: freeze the routers, or leave them trained; told where there are any.

    Args:
        model: Any model.
        train: The recipe's ``train_router``.
        among: Names of the modules that are trained; routers elsewhere, and those named here themselves, are left
            alone. None: the whole model.

    Raises:
        UserError: `train` for a model without routers.
    """
    routers = find_experts(model).routers
    if train and not routers:
        raise UserError(_no_experts(model, "train_router"))
    if among is not None:
        routers = tuple(name for name in routers if any(name.startswith(f"{outer}.") for outer in among))
    for name in routers:
        model.get_submodule(name).requires_grad_(train)
    if routers:
        logger.info("%d routers are %s ('train_router').", len(routers), "trained" if train else "frozen")


def lora_targets(
    model: PreTrainedModel,
    target_modules: str | Sequence[str] | None,
    target_parameters: Sequence[str] | None = None,
    modules_to_save: Sequence[str] | None = None,
    *,
    train_router: bool = False,
) -> LoraTargets:
    """Make a recipe's LoRA targets say the same to PEFT for a mixture of experts as for a dense model.

    PEFT reads ``all-linear`` and names such as ``gate_proj`` of many mixtures as their fused experts and router, at
    twice the rank, and puts LoRA on routers that return more than one tensor, which then fail. Here ``all-linear`` is
    the linear layers outside of routers, experts are asked for with ``all-experts`` among `target_parameters`, and
    routers are trained, in full, with `train_router` alone.

    Args:
        model: The base model; a dense one gets back what came in.
        target_modules: Module names or ends; ``all-linear``; a plain text is a regular expression.
        target_parameters: Parameter names or ends, or ``all-experts``.
        modules_to_save: Modules trained in full beside the adapter.
        train_router: Add the routers to `modules_to_save`.

    Raises:
        UserError: a parameter that does not exist, a router or an expert among `target_modules`, experts or routers
            asked for where there are none.
    """
    experts = find_experts(model)
    parameters = _parameter_names(model, experts, target_parameters)
    saved = list(modules_to_save) if modules_to_save else []
    if train_router and not experts.routers:
        raise UserError(_no_experts(model, "train_router"))
    if train_router:
        saved += _short_names(experts.routers, (name for name, _ in model.named_modules()))
    modules = _as_given(target_modules)
    if experts.modules and modules is not None:
        modules = _module_names(model, experts, modules)
    _refuse_both(model, modules, parameters)
    return LoraTargets(modules, parameters, saved or None)


def check_parameter_limits(
    target_parameters: Sequence[str] | None,
    *,
    dropout: float = 0.0,
    use_dora: bool = False,
    init_lora_weights: Any = True,
) -> None:
    """What PEFT 0.21 cannot do on a parameter (`peft.tuners.lora.layer.ParamWrapper`), told before it fails inside.

    Rank-stabilised scale and rank and alpha patterns work.

    Raises:
        UserError: dropout (the update is added to the weight, so there is no input to drop from), DoRA, or an
            initialisation that needs a module's `weight`.
    """
    if not target_parameters:
        return
    if dropout:
        raise UserError(
            f"lora_dropout is {dropout}, but LoRA on parameters ('lora_target_parameters') needs 0: set it."
        )
    if use_dora:
        raise UserError("DoRA cannot be put on parameters: use 'method: lora', or remove 'lora_target_parameters'.")
    if init_lora_weights not in (True, "default", "gaussian"):
        raise UserError(
            f"init_lora_weights '{init_lora_weights}' cannot be used on parameters ('lora_target_parameters'): "
            "use 'default' or 'gaussian'."
        )


def choose_aux_loss(model: PreTrainedModel, coefficient: float | None, *, router_is_trained: bool) -> float | None:
    """The weight of the load-balancing loss to hand to TRL as ``router_aux_loss_coef``; None is the model's own.

    It balances routers, so it is left out where they are frozen, unless asked for: TRL takes the config's weight
    otherwise, and with it a loss that computes the head of all supervised positions the slow way.

    Args:
        model: The base model.
        coefficient: The recipe's ``router_aux_loss_coef``.
        router_is_trained: Whether routers are trained.

    Raises:
        UserError: a weight is given for a model that does not return its router's logits.
    """
    config = model.config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        if coefficient:
            raise UserError(
                f"router_aux_loss_coef is {coefficient}, but {type(model).__name__} returns no router logits to "
                "balance: remove it."
            )
        return None
    if coefficient is not None or router_is_trained or not getattr(config, "router_aux_loss_coef", 0.0):
        return coefficient
    logger.info(
        "The load-balancing loss is left out, since the routers are frozen; 'router_aux_loss_coef' puts it back."
    )
    return 0.0


def tell_unquantised_experts(model: nn.Module) -> None:
    """Warn where a quantised base keeps its fused experts wide: bitsandbytes quantises linear layers only."""
    from hf_recipes.models.counts import count_parameters

    weights = [model.get_parameter(name) for name in find_experts(model).weights]
    wide = sum(parameter.numel() for parameter in weights if parameter.is_floating_point())
    if wide and getattr(model, "is_quantized", False):
        share = 100 * wide / count_parameters(model)[1]
        logger.warning(
            "The experts, %.0f %% of the parameters, are not quantised (bitsandbytes quantises linear layers only, and "
            "the experts are fused parameters): plan memory for them in 16 bits.",
            share,
        )


def _no_experts(model: nn.Module, key: str) -> str:
    return f"{key}: {type(model).__name__} is no mixture of experts that is known here: remove it."


def _as_given(targets: str | Sequence[str] | None) -> str | list[str] | None:
    if targets is None or isinstance(targets, str):
        return targets
    return ALL_LINEAR if list(targets) == [ALL_LINEAR] else list(targets)


def _parameter_names(model: nn.Module, experts: Experts, wanted: Sequence[str] | None) -> list[str] | None:
    if not wanted:
        return None
    parameters = dict(model.named_parameters())
    names: list[str] = []
    for name in wanted:
        if name == ALL_EXPERTS:
            if not experts.weights:
                raise UserError(_no_fused(model, experts))
            names += _short_names(experts.weights, parameters)
            continue
        matched = ending_with(name, parameters)
        _check_parameter(model, name, [parameters[full] for full in matched])
        names.append(name)
    return list(dict.fromkeys(names))


def _no_fused(model: nn.Module, experts: Experts) -> str:
    if experts.modules:
        return (
            f"lora_target_parameters: the experts of {type(model).__name__} are not fused into 3-D parameters: name "
            "their linear layers in 'lora_target_modules'."
        )
    return _no_experts(model, f"lora_target_parameters '{ALL_EXPERTS}'")


def _check_parameter(model: nn.Module, name: str, matched: Sequence[Any]) -> None:
    if not matched:
        ends = sorted({_within_layer(full) for full, parameter in model.named_parameters() if parameter.ndim in (2, 3)})
        raise UserError(
            f"lora_target_parameters: '{name}' is no parameter of {type(model).__name__}{nearest(name, ends)}: "
            f"choose from {', '.join(ends)}, or write {ALL_EXPERTS}."
        )
    for parameter in matched:
        if not parameter.is_floating_point():
            raise UserError(f"lora_target_parameters: '{name}' is quantised: LoRA on parameters needs 16 or 32 bits.")
        if parameter.ndim not in (2, 3):
            raise UserError(
                f"lora_target_parameters: '{name}' has {parameter.ndim} dimension(s): LoRA is put on matrices and "
                "stacks of them (2 or 3)."
            )


def _module_names(model: PreTrainedModel, experts: Experts, wanted: str | list[str]) -> list[str]:
    """Names PEFT takes as they are meant: no router, nothing it would read as an expert."""
    if wanted == ALL_LINEAR:
        return _linear_names(model, experts)
    names = [name for name, _ in model.named_modules()]
    if isinstance(wanted, str):
        wanted = fully_matching(wanted, names, "lora_target_modules")
    for target in wanted:
        matched = ending_with(target, names)
        if any(_within(name, experts.routers) for name in matched):
            raise UserError(
                f"lora_target_modules: '{target}' is a router of {type(model).__name__}: remove it, and write "
                "'train_router: true' to train the routers."
            )
        if _read_as_expert(model, target):
            raise UserError(_expert_name(model, target, matched))
    return wanted


def _expert_name(model: nn.Module, target: str, matched: Sequence[str]) -> str:
    weights = sorted({f"{_within_layer(name)}.weight" for name in matched})
    others = f" (for the linear layers of that name write {', '.join(weights)} there)" if weights else ""
    return (
        f"lora_target_modules: PEFT reads '{target}' as the fused experts of {type(model).__name__}: remove it, and "
        f"write 'lora_target_parameters: [{ALL_EXPERTS}]' to train the experts{others}."
    )


def _linear_names(model: PreTrainedModel, experts: Experts) -> list[str]:
    """All linear layers but routers and heads, as PEFT's ``all-linear`` is meant."""
    from torch import nn

    heads = {name for name, module in model.named_children() if module is not model.base_model}
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not _within(name, experts.routers) and not _within(name, heads)
    ]
    lost = sorted(name for name in {_within_layer(name) for name in linear} if _read_as_expert(model, name))
    if lost:
        logger.warning(
            "'%s' leaves out linear layers that PEFT would take for the fused experts: name %s in "
            "'lora_target_parameters' to train them.",
            ALL_LINEAR,
            ", ".join(f"{name}.weight" for name in lost),
        )
    return [name for name in linear if _within_layer(name) not in lost]


def _read_as_expert(model: PreTrainedModel, target: str) -> bool:
    """Whether PEFT turns this module name into parameters of the model (it has a table for checkpoints made before the
    experts were fused); asked of PEFT itself."""
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    config = LoraConfig(target_modules=[target])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # one half of a fused pair, such as gate_proj without up_proj
        return True
    return target not in config.target_modules


def _refuse_both(model: nn.Module, modules: str | list[str] | None, parameters: list[str] | None) -> None:
    if not isinstance(modules, list):
        return
    for parameter in parameters or ():
        owners = {name.rpartition(".")[0] for name in ending_with(parameter, dict(model.named_parameters()))}
        if any(ending_with(target, owners) for target in modules):
            raise UserError(
                f"'{parameter}' of 'lora_target_parameters' belongs to a module of 'lora_target_modules': keep one."
            )


def _within(name: str, outer: Collection[str]) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in outer)


def _within_layer(name: str) -> str:
    """``model.layers.3.mlp.gate`` → ``mlp.gate``."""
    return re.sub(r"^.*\.\d+\.", "", name)


def _short_names(names: Sequence[str], all_names: Iterable[str]) -> list[str]:
    """`names` as they are called within a layer, where that means the same to PEFT, which compares ends of names."""
    short = tuple(dict.fromkeys(_within_layer(name) for name in names))
    return list(short) if {name for name in all_names if name.endswith(short)} == set(names) else list(names)
