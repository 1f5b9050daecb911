"""Keys that a method cannot live with, told before anything is loaded."""

from __future__ import annotations

from hf_recipes.core.errors import UserError
from hf_recipes.models.precision import Hardware
from hf_recipes.models.quantized import check_eight_bit
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.names import describe
from hf_recipes.recipe.keys import LoraMethods
from hf_recipes.recipe.resolve import Recipe


def check_method(recipe: Recipe) -> None:
    """Raise `UserError` where the recipe's method and another of its keys exclude each other."""
    method = recipe.get("method", "lora")
    if method == "prefix":
        _check_prefix(recipe)
    if method != "qlora" and recipe.get("load_in_8bit"):
        raise UserError("load_in_8bit: true quantises the base: write method: qlora with it, or leave it out.")
    if recipe.get("load_in_8bit"):
        check_eight_bit([key for key in recipe.given if recipe.values[key] is not None])
    if method == "ia3" and recipe.get("weight_decay"):
        raise UserError(
            f"weight_decay is {recipe.get('weight_decay')}, but IA3 trains factors, which it draws to 0: set it to "
            "0 (they start at 1)."
        )
    if method == "partial" and not (recipe.get("trainable_layers") or recipe.get("trainable_modules")):
        raise UserError(
            "method: partial has nothing to train: give trainable_layers (the last N; negative: the first N), "
            "trainable_modules, or both."
        )


def check_loss_kernel(recipe: Recipe, hardware: Hardware) -> None:
    """Raise `UserError` for a GPU's loss kernel on a CPU."""
    asked = recipe.get("loss_kernel", "auto")
    if asked not in ("auto", "torch") and hardware.device == "cpu":
        raise UserError(f"loss_kernel: {asked} runs on a GPU, and this machine has none: leave it at auto.")


def _check_prefix(recipe: Recipe) -> None:
    if recipe.get("activation_checkpointing"):
        raise UserError(
            "activation_checkpointing: true computes layers again without the cache, where a trained prefix lives: "
            "leave it out with method: prefix."
        )
    for key in ("resume_from_checkpoint", "load_best_model_at_end"):
        if recipe.get("prefix_projection") and recipe.get(key):
            raise UserError(
                f"{key} does not go with prefix_projection: only what the projection gives is saved, so training "
                "cannot go on from there: start anew, or set prefix_projection: false."
            )


def check_loraplus(recipe: Recipe, layout: Layout) -> None:
    """Refuse LoRA+ where the Trainer takes no optimizer from elsewhere, before anything is loaded.

    Args:
        recipe: checked.
        layout: of the run.

    Raises:
        UserError: the layout is FSDP's, DeepSpeed's or tensor parallelism's, which build the optimizer over parameters
            of their own.
    """
    if recipe.get("loraplus_lr_ratio") is None or recipe.get("method", "lora") not in LoraMethods:
        return
    if layout.pipeline == 1 and (layout.sharding not in ("none", "ddp") or layout.tensor > 1):
        raise UserError(
            f"loraplus_lr_ratio does not go with {describe(layout)}, which makes the optimizer itself: leave it out, "
            "or take strategy: ddp."
        )
