"""LoRA+ (Hayou et al. 2024, arXiv:2402.12354): the B matrices learn faster than the A matrices, by a fixed ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn
    from torch.optim import Optimizer
    from transformers import TrainingArguments

# Optimizers that group parameters in a way of their own, so that none could be given another rate.
_OWN_GROUPS = ("galore", "apollo", "lomo", "adalomo")


def loraplus_optimizer(model: PeftModel, arguments: TrainingArguments, ratio: float) -> Optimizer:
    """The optimizer that the Trainer would make (`optim`, its settings, weight decay), but with `ratio` times the
    learning rate for LoRA's B matrices; any scheduler keeps the ratio, for it multiplies each group's rate.

    Pass it as ``Trainer(optimizers=(optimizer, None))``, or return it from `create_optimizer` (FSDP and DeepSpeed need
    that). The embedding's LoRA, DoRA's magnitudes and modules trained in full keep the plain rate; PEFT's
    `create_loraplus_optimizer` gives these 1e-6, `ratio` times and the plain rate, and leaves out `weight_decay`.

    Args:
        model: With a LoRA adapter on it.
        arguments: ``learning_rate`` is that of A; `ratio` times as much is that of B.
        ratio: Above 0; the paper finds 16 and more good, at a learning rate half the usual.

    Returns:
        Groups: A and others, then B, each with and without weight decay as the Trainer decides by name; none is empty.

    Raises:
        UserError: `ratio` is no such number, there is no B matrix, or `optim` has groups of its own.
    """
    from transformers import Trainer

    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not ratio > 0:
        raise UserError(f"loraplus_lr_ratio: {ratio!r} is no ratio: give a number above 0, such as 16.")
    name = getattr(arguments.optim, "value", arguments.optim)
    if name.startswith(_OWN_GROUPS):
        raise UserError(
            f"loraplus_lr_ratio does not go with optim: {name}, which groups parameters in its own way: use "
            "adamw_torch_fused or another plain optimizer."
        )
    optimizer_class, settings = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    groups = _groups(model, arguments, ratio)
    optimizer: Optimizer = optimizer_class(groups, **settings)
    if settings.get("optim_bits") == 8:
        _keep_embeddings_in_32_bits(model)
    return optimizer


def _groups(model: PeftModel, arguments: TrainingArguments, ratio: float) -> list[dict[str, Any]]:
    from transformers import Trainer

    # A method without need of its instance: the names that the Trainer lets decay.
    decaying = set(Trainer.get_decay_parameter_names(None, model))
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not any(_is_b(name) for name in trained):
        raise UserError("loraplus_lr_ratio: the model has no LoRA B matrix to train: use it with lora, dora or qlora.")
    groups = []
    for b, rate in ((False, arguments.learning_rate), (True, ratio * arguments.learning_rate)):
        for decays, decay in ((True, arguments.weight_decay), (False, 0.0)):
            members = [
                parameter for name, parameter in trained.items() if _is_b(name) == b and (name in decaying) == decays
            ]
            if members:
                groups.append({"params": members, "lr": rate, "weight_decay": decay})
    return groups


def _is_b(name: str) -> bool:
    return "lora_B" in name.split(".")


def _keep_embeddings_in_32_bits(model: nn.Module) -> None:
    """As the Trainer does for bitsandbytes' 8-bit optimizers, which are unstable on embeddings."""
    import bitsandbytes
    from torch import nn

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
