"""Recipe keys that a pipeline cannot follow, told before anything is loaded."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.recipe.resolve import Recipe

_METHODS = ("full", "lora")
_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")
# Key → the values that a pipeline takes, and what to do with others.
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "packing": (
        (False, None),
        "whether rows stay apart is tried on a whole model: leave it out",
    ),
    "streaming": ((False, None), "every rank looks up the rows of a step by their numbers: prepare the data"),
    "auto_micro_batch": ((False, None), "it is measured on a whole model: give per_device_train_batch_size"),
    "init_lora_weights": (("default", "gaussian"), "other starts read weights of all layers: take default or gaussian"),
    "loraplus_lr_ratio": ((None,), "leave it out"),
    "lora_modules_to_save": ((None, []), "leave it out"),
    "lora_target_parameters": ((None, []), "leave it out"),
    "loss_kernel": (("auto", "torch"), "the last stage alone has a head to try kernels on: take torch"),
    "fp16": ((False, None), "its loss scaling is not made over stages: take bf16"),
    "load_best_model_at_end": ((False, None), "leave it out and take the best checkpoint yourself"),
    "save_only_model": ((False, None), "leave it out"),
    "torch_compile": ((False, None), "leave it out"),
    "activation_checkpointing": ((True, False, None), "give true or false"),
    "gradient_checkpointing": ((False, None), "write activation_checkpointing: true"),
    "activation_checkpointing_kwargs": ((None, {}), "leave it out"),
    "neftune_noise_alpha": ((None,), "leave it out"),
    "dataloader_drop_last": ((False, None), "short last batches are filled up: leave it out"),
    "average_tokens_across_devices": ((True, None), "the loss is over all tokens of a step: leave it out"),
}
# Keys of the Trainer that nothing here reads.
_IDLE = (
    "dataloader_num_workers",
    "eval_on_start",
    "ignore_data_skip",
    "include_num_input_tokens_seen",
    "per_device_eval_batch_size",
    "push_to_hub",
    "torch_empty_cache_steps",
)
_SCHEDULES_OF_METRICS = ("reduce_lr_on_plateau", "greedy")
_SAVE_STRATEGIES = ("steps", "no")
ABSENT_WATCHERS = (
    "gradient norm, loss, schedule, throughput, memory, rank and overfit watchers, sample answers, trackers (report_to)"
)


def check_pipeline_keys(recipe: Recipe) -> None:
    """Raise `UserError` where the recipe asks for what a pipeline cannot do."""
    method = recipe.get("method", "lora")
    if method not in _METHODS:
        raise UserError(f"strategy: pp trains method: full or lora, and the recipe's is {method}: take ddp or fsdp.")
    for key, (values, cure) in _ONLY.items():
        value = recipe.values.get(key, values[0])
        if value not in values:
            raise UserError(f"strategy: pp does not go with {key}: {_shown(value)}, {cure}.")
    if (optimizer := recipe.get("optim") or _OPTIMIZERS[0]) not in _OPTIMIZERS:
        raise UserError(f"strategy: pp keeps AdamW's states only, and optim is {optimizer}: leave it out.")
    for key in ("save_strategy", "eval_strategy", "logging_strategy"):
        if (value := recipe.get(key) or "steps") not in _SAVE_STRATEGIES:
            raise UserError(f"strategy: pp counts in steps, and {key} is {value}: give steps or no.")
    if (schedule := recipe.get("lr_scheduler_type")) in _SCHEDULES_OF_METRICS:
        raise UserError(
            f"strategy: pp plans the rate ahead, and lr_scheduler_type {schedule} follows metrics: take cosine."
        )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tell_absent(recipe: Recipe) -> None:
    """Say what a pipeline does without."""
    if idle := [key for key in _IDLE if key in recipe.given and recipe.values[key]]:
        logger.warning("Without effect with strategy: pp: %s.", ", ".join(idle))
    if (recipe.get("evaluation") or {}).get("during_training"):
        logger.warning("Without effect with strategy: pp: evaluation.during_training; `hf-recipes evaluate` works.")
    logger.info("strategy: pp runs without %s; a loss or norm that is not finite ends the run.", ABSENT_WATCHERS)
    if recipe.get("plan_check", "on") != "off":
        logger.info("plan_check: not made, its estimate is of whole models; docs/pipeline.md says what a stage holds.")
