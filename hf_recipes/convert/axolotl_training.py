"""Axolotl's keys for training, data handling, saving and tracking (schemas/training.py, core/builders/base.py)."""

from __future__ import annotations

from typing import Any

from hf_recipes.convert.answers import (
    Answer,
    Config,
    Rule,
    is_nothing,
    is_off,
    is_on,
    lacks,
    none,
    number_of,
    numeric,
    rename,
    same,
    switch,
    taken,
)
from hf_recipes.convert.axolotl_data import all_datasets, pretraining, test_datasets
from hf_recipes.convert.common_rules import early_stopping, held_out
from hf_recipes.convert.strategies import deepspeed, fsdp, fsdp_config, rows_are_cut
from hf_recipes.convert.trainer_keys import (
    SCHEDULERS,
    eval_strategy,
    group_by_length,
    optimizer,
)


def _optimizer_arguments(value: Any, config: Config) -> Answer:
    if not isinstance(value, dict):
        return taken({"optim_args": str(value)})
    return taken({"optim_args": ",".join(f"{key}={said}" for key, said in value.items())})


def _scheduler(value: Any, config: Config) -> Answer:
    if config.get("cosine_min_lr_ratio") and value == "cosine":
        return same("told with cosine_min_lr_ratio")
    if str(value) in SCHEDULERS:
        return taken({"lr_scheduler_type": str(value)})
    return none(f"'{value}' is Axolotl's own schedule: cosine is used in its place")


def _min_lr(value: Any, config: Config) -> Answer:
    if is_nothing(value):
        return same("0: cosine to zero")
    if config.get("lr_scheduler", "cosine") != "cosine":
        return same("acts with lr_scheduler: cosine only, there too")
    schedule = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": value}}
    return taken(schedule)


def _warmup_steps(value: Any, config: Config) -> Answer:
    return taken({"warmup_steps": number_of(value, "warmup_steps", config)})


def _warmup_ratio(value: Any, config: Config) -> Answer:
    if config.get("warmup_steps") is not None:
        return same("warmup_steps wins over it, there too")
    return taken({"warmup_steps": number_of(value, "warmup_ratio", config)}, "below 1 it is a share of all steps")


def _per_epoch(theirs: str, ours: str) -> Rule:
    def rule(value: Any, config: Config) -> Answer:
        if is_nothing(value):
            return same("as if absent")
        if ours == "eval" and is_nothing(config.get("val_set_size", 0)) and not config.get("test_datasets"):
            return same("nothing is held out, there too")
        share = 1 / (number_of(value, theirs, config) * number_of(config.get("num_epochs", 1), "num_epochs", config))
        if share >= 1:
            return taken({f"{ours}_strategy": "no"} if ours == "eval" else {f"{ours}_strategy": "epoch"})
        return taken(
            {f"{ours}_strategy": "steps", f"{ours}_steps": round(share, 6)}, "below 1 it is a share of the run"
        )

    return rule


def _steps(ours: str) -> Rule:
    def rule(value: Any, config: Config) -> Answer:
        if is_nothing(value):
            return same("as if absent")
        return taken({f"{ours}_strategy": "steps", f"{ours}_steps": number_of(value, f"{ours}_steps", config)})

    return rule


def _save_strategy(value: Any, config: Config) -> Answer:
    if not is_nothing(config.get("save_steps", 0)) or config.get("saves_per_epoch"):
        return same("save_steps or saves_per_epoch win over it, there too")
    return taken({"save_strategy": "no" if is_off(value) else str(value)})


def _eval_strategy(value: Any, config: Config) -> Answer:
    if not is_nothing(config.get("eval_steps", 0)) or config.get("evals_per_epoch"):
        return same("eval_steps or evals_per_epoch win over it, there too")
    return eval_strategy(value, config)


def _packing(value: Any, config: Config) -> Answer:
    if not is_on(value):
        return taken({"packing": False})
    return taken({"packing": True}, "a micro-batch counts packed rows, as there")


def _train_on_inputs(value: Any, config: Config) -> Answer:
    return taken({"assistant_only_loss": not is_on(value)})


def _excess(value: Any, config: Config) -> Answer:
    if value == "drop":
        return taken({"overlong": "drop"})
    if value == "raise":
        return none("rows that are too long are dropped, and counted in data.json; `hf-recipes inspect` shows how many")
    return none("no answer is cut at its end: overlong: shorten_prompt keeps it whole, split makes several samples")


def _tracker(name: str) -> Rule:
    def rule(value: Any, config: Config) -> Answer:
        return taken({"report_to": name}) if not is_nothing(value) else same("off, as here")

    return rule


def _wandb_name(key: str) -> Rule:
    def rule(value: Any, config: Config) -> Answer:
        if is_nothing(value):
            return same("empty there too")
        if key == "wandb_name":
            return taken({"run_name": str(value)})
        variable = "WANDB_RUN_ID" if key == "wandb_run_id" else key.upper()
        told = f"set {variable}={value} in the environment"
        return none(told) if key != "wandb_project" else Answer("taken", {"report_to": "wandb"}, told)

    return rule


def _parallel(strategy: str, ours: str) -> Rule:
    def rule(value: Any, config: Config) -> Answer:
        size = int(number_of(value, ours, config))
        if size <= 1:
            return same("1: off, as here")
        if strategy == "tp" and rows_are_cut(config):
            return none("rows are cut already: tensor and context parallelism do not go together here")
        return taken({"strategy": strategy, ours: size})

    return rule


def _shuffle(value: Any, config: Config) -> Answer:
    return same("always shuffled, by seed") if is_on(value) else taken({"train_sampling_strategy": "sequential"})


def _curriculum(value: Any, config: Config) -> Answer:
    return taken({"train_sampling_strategy": "sequential"}) if is_on(value) else same("off, as here")


def _deduplicate(value: Any, config: Config) -> Answer:
    return taken({"clean": {"duplicates": "exact"}}) if is_on(value) else same("off, as here")


def _hub_model(value: Any, config: Config) -> Answer:
    return taken({"hub_model_id": str(value), "push_to_hub": True, "hub_private_repo": True}, "private, as there")


def _resume(value: Any, config: Config) -> Answer:
    return taken({"resume_from_checkpoint": "last"}, "of our own runs") if is_on(value) else same("off, as here")


_NUMBERS = (
    "gradient_accumulation_steps", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "max_grad_norm", "max_steps", "seed", "neftune_noise_alpha", "logging_steps", "ddp_timeout", "ddp_bucket_cap_mb",
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataset_num_proc", "torch_empty_cache_steps",
)  # fmt: skip
_SWITCHES = (
    "save_only_model", "load_best_model_at_end", "greater_is_better", "dataloader_pin_memory", "dataloader_drop_last",
    "ddp_find_unused_parameters", "streaming",
)  # fmt: skip
_VALUES = (
    "output_dir", "lr_scheduler_kwargs", "save_total_limit", "metric_for_best_model", "hub_revision", "hub_strategy",
)  # fmt: skip
_WANDB = ("wandb_project", "wandb_name", "wandb_entity", "wandb_run_id", "wandb_mode")
TRAINING_RULES: dict[str, Rule] = {
    **{key: numeric(key) for key in _NUMBERS},
    **{key: switch(key) for key in _SWITCHES},
    **{key: rename(key) for key in _VALUES},
    **{key: _wandb_name(key) for key in _WANDB},
    "wandb_log_model": lacks("`hf-recipes export --push` publishes a result"),
    "use_wandb": _tracker("wandb"),
    "use_tensorboard": _tracker("tensorboard"),
    "use_mlflow": _tracker("mlflow"),
    "use_comet": _tracker("comet_ml"),
    "use_trackio": _tracker("trackio"),
    "datasets": all_datasets,
    "test_datasets": test_datasets,
    "pretraining_dataset": pretraining,
    "val_set_size": held_out("val_set_size"),
    "sequence_len": numeric("sequence_len", "max_length"),
    "excess_length_strategy": _excess,
    "train_on_inputs": _train_on_inputs,
    "sample_packing": _packing,
    "group_by_length": group_by_length,
    "shuffle_merged_datasets": _shuffle,
    "curriculum_sampling": _curriculum,
    "dataset_exact_deduplication": _deduplicate,
    "dataset_processes": numeric("dataset_processes", "dataset_num_proc"),
    "micro_batch_size": numeric("micro_batch_size", "per_device_train_batch_size"),
    "eval_batch_size": numeric("eval_batch_size", "per_device_eval_batch_size"),
    "auto_find_batch_size": switch("auto_micro_batch", "the global batch is kept by accumulation"),
    "num_epochs": numeric("num_epochs", "num_train_epochs"),
    "optimizer": optimizer,
    "optim_args": _optimizer_arguments,
    "lr_scheduler": _scheduler,
    "cosine_min_lr_ratio": _min_lr,
    "warmup_steps": _warmup_steps,
    "warmup_ratio": _warmup_ratio,
    "eval_steps": _steps("eval"),
    "evals_per_epoch": _per_epoch("evals_per_epoch", "eval"),
    "eval_strategy": _eval_strategy,
    "evaluation_strategy": _eval_strategy,
    "save_steps": _steps("save"),
    "saves_per_epoch": _per_epoch("saves_per_epoch", "save"),
    "save_strategy": _save_strategy,
    "early_stopping_patience": early_stopping("early_stopping_patience"),
    "auto_resume_from_checkpoints": _resume,
    "deepspeed": deepspeed,
    "fsdp": fsdp,
    "fsdp_config": fsdp_config,
    "context_parallel_size": _parallel("cp", "context_parallel_size"),
    "sequence_parallel_degree": _parallel("cp", "context_parallel_size"),
    "tensor_parallel_size": _parallel("tp", "tensor_parallel_size"),
    "hub_model_id": _hub_model,
}
