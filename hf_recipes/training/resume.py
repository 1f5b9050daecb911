"""Training from the start or from a checkpoint; a checkpoint of another set-up is told in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json

# What torch and PEFT say when the tensors of a checkpoint do not fit the model or the optimizer.
_MISFITS = ("size mismatch", "state_dict", "parameter group", "checkpoint index")


# What decides the shapes of an adapter, by PEFT's type: its name in adapter_config.json, and the recipe key that sets
# it.
_ADAPTER_SHAPE: dict[str, dict[str, str]] = {
    "LORA": {
        "r": "lora_r",
        "target_modules": "lora_target_modules",
        "target_parameters": "lora_target_parameters",
        "rank_pattern": "lora_rank_pattern",
        "lora_alpha": "lora_alpha",
        "alpha_pattern": "lora_alpha_pattern",
        "use_rslora": "use_rslora",
        "use_dora": "method",
        "modules_to_save": "lora_modules_to_save",
        "init_lora_weights": "init_lora_weights",
    },
    "PREFIX_TUNING": {"num_virtual_tokens": "num_virtual_tokens", "prefix_projection": "prefix_projection"},
    "IA3": {"target_modules": "ia3_target_modules", "feedforward_modules": "ia3_feedforward_modules"},
    "HF_RECIPES_BOTTLENECK": {
        "adapter_size": "adapter_size",
        "adapter_activation": "adapter_activation",
        "target_modules": "adapter_target_modules",
    },
}


def check_resume(checkpoint: Path | None, model: Any, planned_steps: int) -> None:
    """Refuse a checkpoint that this recipe cannot continue, before anything of the run is written over.

    Raises:
        UserError: its adapter has another shape than the recipe's, or no step is left to train.
    """
    if checkpoint is None:
        return
    step = int(read_json(checkpoint / "trainer_state.json")["global_step"])
    if step >= planned_steps:
        raise UserError(
            f"'{checkpoint}' is at step {step} of {planned_steps}, nothing is left to train: raise max_steps or "
            "num_train_epochs, or use the result."
        )
    configs = getattr(model, "peft_config", None)
    if configs is None or not (checkpoint / "adapter_config.json").is_file():
        return
    before, now = read_json(checkpoint / "adapter_config.json"), configs["default"].to_dict()
    for name, key in {"peft_type": "method", **_ADAPTER_SHAPE.get(now["peft_type"].value, {})}.items():
        if _comparable(before.get(name)) != _comparable(now.get(name)):
            raise UserError(
                f"'{checkpoint}' was trained with {name} {_comparable(before.get(name))}, the recipe asks for "
                f"{_comparable(now.get(name))}: set {key} back, or start anew with another output_dir."
            )


def _comparable(value: Any) -> Any:
    """Lists and sets by content; nothing, an empty list and false alike."""
    return sorted(value) if isinstance(value, (list, tuple, set)) and value else value or None


def train_from(trainer: Any, checkpoint: Path | None) -> None:
    """Run `trainer.train`, resuming from `checkpoint` where there is one.

    Raises:
        UserError: the checkpoint's tensors do not fit this recipe's model (other rank, targets or method).
    """
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except ImportError as error:  # an optimizer of a package that is not there
        raise UserError(f"optim: {' '.join(str(error).split())}") from error
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if checkpoint is None or not any(sign in text for sign in _MISFITS):
            raise
        raise UserError(
            f"'{checkpoint}' does not fit this recipe's model: resume with the method, lora_r and targets it was "
            f"trained with, or start anew with another output_dir ({text[:200]})."
        ) from error
