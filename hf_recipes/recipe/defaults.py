"""The defaults of a recipe, for keys it leaves out. Sources: the QLoRA and LoRA practice cited in docs/recipes.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_FOR_ALL: dict[str, Any] = {
    "max_grad_norm": 1.0,
    "warmup_steps": 0.03,  # below 1: a share of all steps
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},  # ends at a tenth of the peak
    "assistant_only_loss": True,
    "eval_strategy": "steps",
    "eval_steps": 0.1,  # every tenth of the run
    "save_strategy": "steps",
    "save_steps": 0.1,
    "prediction_loss_only": True,  # collecting logits runs evaluation out of memory
    "disable_tqdm": False,
}
_FOR_FULL: dict[str, Any] = {"learning_rate": 2e-5}
_FOR_ADAPTERS: dict[str, Any] = {"learning_rate": 2e-4}
_FOR_LORA: dict[str, Any] = {
    **_FOR_ADAPTERS,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": ["q_proj", "v_proj"],
}
# What is trained is small and starts at nothing: rates of the papers (Li & Liang 2021; Liu et al. 2022).
_FOR_SMALL: dict[str, Any] = {"learning_rate": 3e-3}
_BY_METHOD: dict[str, dict[str, Any]] = {
    "full": _FOR_FULL,
    "partial": _FOR_FULL,
    "lora": _FOR_LORA,
    "dora": _FOR_LORA,
    "qlora": {**_FOR_LORA, "use_bnb_nested_quant": True},
    "adapter": _FOR_ADAPTERS,
    "prefix": _FOR_SMALL,
    "ia3": _FOR_SMALL,
}
# Left out, these are decided when the run starts, from the hardware, the method and what is measured.
DECIDED_AT_THE_START: dict[str, str] = {
    "dtype": "bf16 where the hardware computes it, else fp32; fp32 (full)",
    "bf16": "as the hardware and `dtype` allow",
    "activation_checkpointing": "as far as measured memory asks for it",
}

METHODS = tuple(_BY_METHOD)


def default_told(key: str, default: Any, show: Callable[[Any], str]) -> str:
    """What holds where a recipe says nothing of `key`, which for some keys depends on the method: `default` is that of
    its dataclass, `show` writes a value (empty for one that says nothing)."""
    if key in DECIDED_AT_THE_START:
        return DECIDED_AT_THE_START[key]
    methods: dict[str, list[str]] = {}
    for method in METHODS:
        methods.setdefault(show(recipe_defaults(method).get(key, default)), []).append(method)
    if len(methods) == 1:
        return next(iter(methods))
    return "; ".join(f"{value or 'none'} ({', '.join(names)})" for value, names in methods.items())


def recipe_defaults(method: str) -> dict[str, Any]:
    """The defaults that differ from SFTConfig's and ModelConfig's own, for one method (``full``, ``lora``, …)."""
    return {**_FOR_ALL, **_BY_METHOD[method]}
