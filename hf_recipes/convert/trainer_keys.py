"""The keys of transformers' `TrainingArguments`, which LLaMA-Factory, ms-swift and TRL hand through by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_recipes.convert.answers import (
    Answer,
    Config,
    Rule,
    always_lacks,
    holds,
    is_nothing,
    is_off,
    is_on,
    lacks,
    names_of,
    none,
    number_of,
    numeric,
    rename,
    same,
    switch,
    taken,
)
from hf_recipes.convert.engine import Default
from hf_recipes.convert.strategies import deepspeed, fsdp, fsdp_config

_NUMBERS = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "learning_rate",
    "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "num_train_epochs", "max_steps",
    "logging_steps", "save_steps", "eval_delay", "eval_accumulation_steps", "seed", "data_seed",
    "neftune_noise_alpha", "dataloader_num_workers", "dataloader_prefetch_factor", "ddp_timeout", "ddp_bucket_cap_mb",
    "torch_empty_cache_steps", "router_aux_loss_coef",
)  # fmt: skip
_SWITCHES = (
    "logging_first_step", "save_only_model", "eval_on_start", "tf32", "torch_compile", "dataloader_drop_last",
    "dataloader_pin_memory", "dataloader_persistent_workers", "ddp_find_unused_parameters", "ddp_broadcast_buffers",
    "load_best_model_at_end", "greater_is_better", "push_to_hub", "hub_private_repo", "hub_always_push",
    "full_determinism", "include_num_input_tokens_seen",
)  # fmt: skip
_VALUES = (
    "optim_args", "lr_scheduler_kwargs", "logging_strategy", "save_strategy", "save_total_limit",
    "metric_for_best_model", "hub_model_id", "hub_strategy", "output_dir", "run_name", "torch_compile_backend",
    "torch_compile_mode", "ddp_backend", "train_sampling_strategy", "dataloader_multiprocessing_context",
    "optim_target_modules", "bf16_full_eval", "fp16_full_eval", "use_cpu", "liger_kernel_config", "log_on_each_node",
    "logging_nan_inf_filter", "log_level_replica", "hub_revision", "ignore_data_skip", "length_column_name",
    "dataloader_in_order", "ddp_static_graph", "save_on_each_node", "skip_memory_metrics", "debug",
    "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "label_names", "include_for_metrics",
    "batch_eval_metrics", "eval_do_concat_batches", "eval_use_gather_object", "enable_jit_checkpoint",
    "restore_callback_states_from_checkpoint",
)  # fmt: skip
SAME_NAMES = (*_NUMBERS, *_SWITCHES, *_VALUES)
SCHEDULERS = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
    "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay",
)  # fmt: skip
OPTIMIZERS = (
    "adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adafactor", "adamw_anyprecision",
    "adamw_torch_4bit", "adamw_torch_8bit", "ademamix", "sgd", "adagrad", "adamw_bnb_8bit", "adamw_8bit",
    "ademamix_8bit", "lion_8bit", "lion_32bit", "paged_adamw_32bit", "paged_adamw_8bit", "paged_ademamix_32bit",
    "paged_ademamix_8bit", "paged_lion_32bit", "paged_lion_8bit", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_8bit",
    "rmsprop_bnb_32bit", "galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "lomo", "adalomo", "grokadamw", "schedule_free_radam",
    "schedule_free_adamw", "schedule_free_sgd", "apollo_adamw", "apollo_adamw_layerwise", "stable_adamw",
)  # fmt: skip
OTHER_TOOLS_CHECKPOINT = (
    "a checkpoint of another tool is not resumed: start anew, or merge what it trained and name that as "
    "model_name_or_path"
)
TRUST = switch("trust_remote_code", "code that comes with the model is run: only where you trust it")
SPEED_ONLY = "changes speed or memory, not what is learned"


def _processes(value: Any, config: Config) -> Answer:
    """`num_processes` counts the ranks of all machines."""
    if str(config.get("NNODES", 1)) != "1":
        return none(f"hf-recipes sft --num_processes {value} on each machine")
    return taken({"num_processes": number_of(value, "NPROC_PER_NODE", config)})


# Variables that stand before a command.
_ENVIRONMENT: dict[str, Rule] = {
    "NPROC_PER_NODE": _processes,
    "FORCE_TORCHRUN": holds("num_processes starts as many processes"),
    **dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "WANDB_PROJECT", "WANDB_MODE", "HF_ENDPOINT", "HF_HOME"),
        always_lacks("set it before `hf-recipes sft` as well"),
    ),
    "MASTER_PORT": always_lacks("hf-recipes sft --main_process_port"),
    "MASTER_ADDR": always_lacks("hf-recipes sft --main_process_ip"),
    "NNODES": always_lacks("hf-recipes sft --num_machines"),
    "NODE_RANK": always_lacks("hf-recipes sft --machine_rank"),
}


def scheduler(value: Any, config: Config) -> Answer:
    """The schedule by its name in transformers."""
    if str(value) in SCHEDULERS:
        return taken({"lr_scheduler_type": str(value)})
    return none(f"'{value}' is no schedule of transformers: choose lr_scheduler_type yourself")


def optimizer(value: Any, config: Config) -> Answer:
    """The optimizer by its name in transformers, which has dropped its own AdamW."""
    name = str(value)
    if name == "adamw_hf":
        return taken({"optim": "adamw_torch"}, "PyTorch's AdamW, which took its place")
    if name in OPTIMIZERS:
        return taken({"optim": name})
    near = "adamw_torch_8bit" if "8bit" in name else "adamw_torch_4bit" if "4bit" in name else "adamw_torch_fused"
    return none(f"transformers has no such optimizer: AdamW is used (optim: {near} is near); choose the rate anew")


def warmup_ratio(value: Any, config: Config) -> Answer:
    """A share of all steps; transformers lets a positive `warmup_steps` win."""
    steps = config.get("warmup_steps", 0)
    if number_of(steps, "warmup_steps", config) > 0:
        return same(f"warmup_steps: {steps} wins over it, there too")
    return taken({"warmup_steps": number_of(value, "warmup_ratio", config)}, "below 1 it is a share of all steps")


def warmup_steps(value: Any, config: Config) -> Answer:
    """A number of steps, or below 1 a share of all; 0 leaves it to `warmup_ratio`."""
    steps = number_of(value, "warmup_steps", config)
    if steps == 0 and config.get("warmup_ratio") is not None:
        return same("0 leaves it to warmup_ratio, there too")
    return taken({"warmup_steps": steps})


def eval_strategy(value: Any, config: Config) -> Answer:
    """When the eval loss is measured; YAML 1.1 reads `no` as false."""
    return taken({"eval_strategy": "no" if is_off(value) else str(value)})


def average_tokens(value: Any, config: Config) -> Answer:
    """transformers' switch for weighting tokens alike over processes."""
    if is_on(value):
        return same("each token of a step weighs alike, as here")
    return none("each token of a step weighs alike, whichever process it is on")


def checkpointing(value: Any, config: Config) -> Answer:
    """`gradient_checkpointing` under the name that transformers 5 gives it."""
    return taken({"activation_checkpointing": is_on(value)})


def reporters(value: Any, config: Config) -> Answer:
    """Trackers; `none` and `all` are words of their own."""
    names = names_of(value) if not is_nothing(value) else ["none"]
    if "swanlab" in names and len(names) == 1:
        return taken({"report_to": "swanlab"}, "set up swanlab by its environment variables")
    return taken({"report_to": names[0] if len(names) == 1 else names})


def liger(value: Any, config: Config) -> Answer:
    """Liger's head and loss; its other kernels have no key."""
    if not is_on(value):
        return same("off there too; loss_kernel: torch keeps ours plain as well")
    return taken(
        {"loss_kernel": "liger"}, "head and loss only; Liger's other kernels change speed, not what is learned"
    )


def group_by_length(value: Any, config: Config) -> Answer:
    """transformers 5's name for it."""
    return taken({"train_sampling_strategy": "group_by_length" if is_on(value) else "random"})


def label_smoothing(value: Any, config: Config) -> Answer:
    """Only 0 is supported."""
    off = number_of(value, "label_smoothing_factor", config) == 0
    return same("0, as here") if off else none("the loss is plain cross-entropy: without label smoothing")


def bf16(value: Any, config: Config) -> Answer:
    """bf16 is our default; only its absence has to be said."""
    return same("bf16 wherever the hardware has it is our default") if is_on(value) else taken({"bf16": False})


def fp16(value: Any, config: Config) -> Answer:
    """fp16 has to be said."""
    return taken({"fp16": True}) if is_on(value) else same("off, as here")


def trainer_rules() -> dict[str, Rule]:
    """The rules for all keys of `TrainingArguments` that these tools hand through."""
    rules: dict[str, Rule] = {
        **{name: numeric(name) for name in _NUMBERS},
        **{name: switch(name) for name in _SWITCHES},
        **{name: rename(name) for name in _VALUES},
        **dict.fromkeys(("eval_strategy", "evaluation_strategy"), eval_strategy),
        "auto_find_batch_size": switch("auto_micro_batch", "the global batch is kept by accumulation"),
        "trust_remote_code": TRUST,
        **dict.fromkeys(("use_liger_kernel", "enable_liger_kernel"), liger),
        "bf16": bf16,
        "fp16": fp16,
        "lr_scheduler_type": scheduler,
        "optim": optimizer,
        "warmup_ratio": warmup_ratio,
        "warmup_steps": warmup_steps,
        "eval_steps": numeric("eval_steps"),
        "gradient_checkpointing": checkpointing,
        "activation_checkpointing": checkpointing,
        "activation_checkpointing_kwargs": rename("activation_checkpointing_kwargs"),
        "use_cache": holds("off while training"),
        "gradient_checkpointing_kwargs": rename("activation_checkpointing_kwargs"),
        "report_to": reporters,
        "group_by_length": group_by_length,
        "label_smoothing_factor": label_smoothing,
        "deepspeed": deepspeed,
        "fsdp": fsdp,
        "fsdp_config": fsdp_config,
        "average_tokens_across_devices": average_tokens,
        "accelerator_config": lacks("the recipe's own keys decide"),
        "parallelism_config": lacks("write strategy: tp or cp"),
        "resume_from_checkpoint": lacks(OTHER_TOOLS_CHECKPOINT),
        "hub_token": lacks("a secret has no place in a file: log in (`hf auth login`) or set HF_TOKEN"),
        "do_train": holds("`hf-recipes sft` trains"),
        "do_eval": holds("evaluated by eval_strategy"),
        "do_predict": lacks("`hf-recipes evaluate RUN_DIR` generates and scores after the run"),
        "predict_with_generate": lacks("`hf-recipes evaluate RUN_DIR` generates and scores after the run"),
        "overwrite_output_dir": holds("a finished run is never overwritten: give another output_dir"),
        "remove_unused_columns": holds("batches hold only what the model takes"),
        "local_rank": holds("the launcher sets it"),
        "disable_tqdm": holds("changes the screen only"),
        "log_level": holds("changes the screen only"),
        "logging_dir": holds("the tracker's own; events.jsonl and the report lie in output_dir"),
        "save_safetensors": holds("always safetensors"),
        "prediction_loss_only": holds("logits are never collected"),
        **_ENVIRONMENT,
    }
    return rules


def is_sharded(recipe: Mapping[str, Any]) -> bool:
    """Whether a strategy keeps fp32 masters of 16-bit weights by itself (ZeRO's optimizer, FSDP's upcast)."""
    return str(recipe.get("strategy", "")).startswith(("zero", "fsdp", "hsdp"))


def bf16_weights(tool: str, recipe: Mapping[str, Any]) -> list[Default]:
    """Full fine-tuning there trains the weights in bf16 themselves; ours keeps fp32 masters unless told."""
    if recipe.get("method") != "full" or "dtype" in recipe or recipe.get("fp16") or recipe.get("bf16") is False:
        return []
    if is_sharded(recipe):
        return []
    note = (
        f"{tool} trains the bf16 weights themselves; remove the line for fp32 ones under bf16 autocast, which keep "
        "small updates, at 16 bytes a parameter instead of 8"
    )
    return [Default({"dtype": "bf16"}, note)]


def no_evaluation(tool: str, config: Config, recipe: Mapping[str, Any]) -> list[Default]:
    """Nothing is held out there unless asked for; ours keeps a tenth."""
    if any(not is_nothing(config.get(key, 0)) for key in ("val_set_size", "val_size", "test_split_size")):
        return []
    if "eval_share" in recipe or any(source.get("eval_share") == 1 for source in recipe.get("datasets", [])):
        return []
    return [
        Default({"eval_share": 0.0}, f"{tool} holds nothing out; our 0.1 shows overfitting, for a tenth of the rows")
    ]
