"""Partial fine-tuning: some decoder layers and named modules are trained, the rest of the model stays frozen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.log import logger
from hf_recipes.models.methods.experts import set_router_training
from hf_recipes.models.methods.targets import ending_with, fully_matching
from hf_recipes.models.methods.values import names as checked_names
from hf_recipes.models.methods.values import truth, whole_number
from hf_recipes.models.trained_dtype import widen_trained

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PartialSettings:
    """What is trained.

    `trainable_layers`: the last N decoder layers, or the first N where negative; 0 or None for none.
    `trainable_modules`: modules trained besides, by name or end of name (``lm_head``, ``norm``); a plain text that is
    none is a regular expression that must match a whole name. `train_router`: also the routers of a mixture of experts
    within the layers.
    """

    trainable_layers: int | None = 2
    trainable_modules: str | Sequence[str] | None = ()
    train_router: bool = False


def attach_partial(
    model: PreTrainedModel,
    settings: PartialSettings,
    *,
    task_type: str = "CAUSAL_LM",
    autocast_adapter_dtype: bool = True,
) -> PreTrainedModel:
    """Freeze `model` but for the layers and modules of `settings`; returns `model` itself.

    Args:
        model: The base model, in any floating dtype.
        settings: Layers and modules to train.
        task_type: With ``SEQ_CLS`` the new classification head is trained in any case.
        autocast_adapter_dtype: Put what is trained in fp32, over a 16-bit frozen rest: 16-bit weights have no room for
            small updates. Such a model computes under autocast only.

    Raises:
        UserError: a value of the wrong kind, more layers than there are, a name that matches nothing, quantised
            weights, nothing to train.
    """
    count = settings.trainable_layers
    layers = _chosen_layers(model, 0 if count is None else whole_number("trainable_layers", count))
    named = _matching_modules(model, settings.trainable_modules or ())
    train_router = truth("train_router", settings.train_router)
    if task_type == "SEQ_CLS":
        named |= {name: module for name, module in _heads(model).items() if name not in named}
    if not layers and not named:
        raise UserError(
            "'partial' has nothing to train: give 'trainable_layers' (the last N, negative: the first N), "
            "'trainable_modules', or both."
        )
    _refuse_quantised({**layers, **named})
    model.requires_grad_(False)
    for module in (*layers.values(), *named.values()):
        module.requires_grad_(True)
    set_router_training(model, train_router, among={**layers, **named})
    _tell(model, layers, named)
    widen_trained(model, under_autocast=autocast_adapter_dtype)
    return model


def find_decoder_layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Name and list of the decoder layers: the largest `nn.ModuleList` as long as the config counts hidden layers.

    Raises:
        UserError: there is no such list.
    """
    from torch import nn

    config = getattr(model, "config", None)
    count = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None) if config is not None else None
    lists = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not lists:
        raise UserError(
            f"trainable_layers: no list of decoder layers is found in {type(model).__name__}: set it to 0 and name "
            "what to train in 'trainable_modules'."
        )
    # A vision tower may have as many layers; the language model's are the larger ones.
    return max(lists, key=lambda item: _count([item[1]]))


def _chosen_layers(model: nn.Module, wanted: int) -> dict[str, nn.Module]:
    if wanted == 0:
        return {}
    name, layers = find_decoder_layers(model)
    if abs(wanted) > len(layers):
        raise UserError(
            f"trainable_layers: {wanted} asked, but {type(model).__name__} has {len(layers)} decoder layers: choose "
            f"1 to {len(layers)} for the last, -1 to -{len(layers)} for the first ones."
        )
    numbers = range(len(layers))[-wanted:] if wanted > 0 else range(-wanted)
    return {f"{name}.{number}": layers[number] for number in numbers}


def _matching_modules(model: nn.Module, wanted: str | Sequence[str]) -> dict[str, nn.Module]:
    modules = {name: module for name, module in model.named_modules() if name}
    matches = {end: ending_with(end, modules) for end in checked_names("trainable_modules", wanted)}
    if isinstance(wanted, str) and not matches[wanted]:
        matches = {wanted: fully_matching(wanted, modules, "trainable_modules")}
    for asked, names in matches.items():
        if not names:
            leaves = sorted({n.rsplit(".", 1)[-1] for n, m in modules.items() if list(m.parameters(recurse=False))})
            raise UserError(
                f"trainable_modules: '{asked}' matches no module of {type(model).__name__}{nearest(asked, leaves)}: "
                f"choose from {', '.join(leaves)}, or give a longer end of the name."
            )
        if not _count(modules[name] for name in names):
            raise UserError(f"trainable_modules: '{asked}' has no parameters: name a module that has some.")
    return {name: modules[name] for names in matches.values() for name in names}


def _heads(model: PreTrainedModel) -> dict[str, nn.Module]:
    """What stands beside the backbone: for a classifier, the head that starts out random."""
    return {name: module for name, module in model.named_children() if module is not model.base_model}


def _refuse_quantised(chosen: dict[str, nn.Module]) -> None:
    for name, module in chosen.items():
        for end, parameter in module.named_parameters():
            if not parameter.is_floating_point():
                raise UserError(
                    f"'partial' cannot train {name}.{end}: its weights are quantised ({parameter.dtype}); use 'qlora', "
                    "or load the base in 16 or 32 bits."
                )


def _tell(model: PreTrainedModel, layers: dict[str, nn.Module], named: dict[str, nn.Module]) -> None:
    for chosen in filter(None, (layers, named)):
        names = list(chosen)
        listed = ", ".join(names[:3]) + (f" … {names[-1]} ({len(names)} modules)" if len(names) > 3 else "")
        logger.info("Trained: %s, %s parameters.", listed, f"{_count(chosen.values(), trained=True):,}")
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is embedding.weight and head.weight.requires_grad:
        logger.info("Head and input embedding are tied: both are trained, as one weight.")


def _count(modules: Iterable[nn.Module], *, trained: bool = False) -> int:
    """Parameters of `modules`, shared ones once; with `trained` only those that are trained."""
    parameters = {id(p): p for module in modules for p in module.parameters()}
    return sum(p.numel() for p in parameters.values() if p.requires_grad or not trained)
