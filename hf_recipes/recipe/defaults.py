"""The defaults of a recipe, for keys it leaves out. Sources: the QLoRA and LoRA practice cited in docs/recipes.md."""

from __future__ import annotations

from typing import Any

_FOR_ALL: dict[str, Any] = {
    "max_grad_norm": 1.0,
    "warmup_steps": 0.03,  # below 1: a share of all steps
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},  # ends at a tenth of the peak
    "activation_checkpointing": False,  # costs about a quarter of the speed: on only where memory needs it
    "assistant_only_loss": True,
    "eval_strategy": "steps",
    "eval_steps": 0.1,  # every tenth of the run
    "save_strategy": "steps",
    "save_steps": 0.1,
    "prediction_loss_only": True,  # collecting logits runs evaluation out of memory
    "disable_tqdm": False,
}
_FOR_ADAPTERS: dict[str, Any] = {
    "learning_rate": 2e-4,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": ["q_proj", "v_proj"],
}
_FOR_FULL: dict[str, Any] = {"learning_rate": 2e-5}


def recipe_defaults(method: str) -> dict[str, Any]:
    """The defaults that differ from SFTConfig's and ModelConfig's own, for one method (``full``, ``lora``, …)."""
    return {**_FOR_ALL, **(_FOR_FULL if method == "full" else _FOR_ADAPTERS)}
