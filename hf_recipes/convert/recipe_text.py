"""A converted recipe as commented YAML, in the groups of the shipped ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hf_recipes.convert.engine import Conversion, Row, show

_WIDTH = 119
_GROUPS: dict[str, tuple[str, ...]] = {
    "model": (
        "model_name_or_path", "model_revision", "trust_remote_code", "method", "dtype", "bf16", "fp16", "tf32",
        "attn_implementation", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage",
        "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters", "lora_modules_to_save",
        "lora_rank_pattern", "lora_alpha_pattern", "use_rslora", "init_lora_weights", "loraplus_lr_ratio",
        "trainable_layers", "trainable_modules", "chat_template_path", "activation_checkpointing",
        "activation_checkpointing_kwargs", "activation_offloading", "loss_kernel",
    ),
    "data": (
        "datasets", "eval_share", "max_length", "overlong", "assistant_only_loss", "mask_history", "clean", "packing",
        "streaming", "dataset_num_proc", "train_sampling_strategy", "dataloader_num_workers",
    ),
    "optimisation": (
        "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size", "per_device_eval_batch_size",
        "gradient_accumulation_steps", "auto_micro_batch", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps",
        "optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
        "neftune_noise_alpha",
    ),
    "processes": (
        "strategy", "num_processes", "tensor_parallel_size", "context_parallel_size", "ddp_timeout",
    ),
    "watching and saving": (),
}  # fmt: skip
_COMMENTS: dict[str, str] = {
    "model_name_or_path": "a directory, a .gguf file or a Hub name",
    "method": "full | partial | lora | dora | qlora | adapter | prefix | ia3",
    "dtype": "what the weights are held in",
    "lora_r": "rank; adapter size and its memory grow with it in proportion",
    "lora_alpha": "update is scaled by alpha / r",
    "lora_dropout": "against overfitting; costs a few percent of speed",
    "lora_target_modules": "all-linear learns more per step than q_proj, v_proj, and costs about 1.5 × the time a step",
    "activation_checkpointing": "auto: as little as fits in the free memory; true: all layers, a quarter slower",
    "datasets": "every source is split, then mixed; drops are counted in data.json",
    "eval_share": "held out before mixing; costs training data and evaluation time",
    "max_length": "memory grows with it in proportion",
    "overlong": "an answer that would be cut at max_length: drop | shorten_prompt | split",
    "assistant_only_loss": "true: train on answers and their end-of-turn token only",
    "packing": "several samples a row, kept apart; counted in rows of max_length",
    "learning_rate": "the peak",
    "num_train_epochs": "each epoch costs the same again; watch eval_loss for overfitting",
    "per_device_train_batch_size": "memory for activations grows with it in proportion",
    "gradient_accumulation_steps": "larger global batch for no memory, in proportionally more time a step",
    "warmup_steps": "below 1: share of all steps",
    "max_grad_norm": "clips spikes",
    "strategy": "how several processes share the work",
    "logging_steps": "a line in events.jsonl each; costs one device sync",
    "eval_steps": "below 1: share of all steps",
    "save_steps": "below 1: share of all steps",
    "save_total_limit": "older checkpoints are deleted, never the last verified one",
}


def recipe_text(conversion: Conversion, source: str, name: str) -> str:
    """The recipe's text.

    Args:
        conversion: What was made of the configuration.
        source: The configuration's file name, for the head.
        name: The recipe's own file name, for the head.
    """
    title = conversion.tool.title
    lines = [f"# From {title}'s {source}, by `hf-recipes convert`", "#", f"#   hf-recipes sft --config {name}"]
    by_default = {key: default.note for default in conversion.defaults for key in default.recipe}
    for group, keys in _grouped(conversion.values).items():
        lines += ["", _heading(group)]
        for key in keys:
            told = by_default.get(key)
            comment = told if told else _comment(key, conversion.origins.get(key, key))
            lines += _entry(key, conversion.values[key], comment)
    return "\n".join([*lines, *_left_out(conversion)]) + "\n"


def _grouped(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """The keys by group, in the groups' order; those of no group are about watching and saving."""
    groups = {group: [key for key in keys if key in values] for group, keys in _GROUPS.items()}
    placed = {key for keys in groups.values() for key in keys}
    groups["watching and saving"] = [key for key in values if key not in placed]
    return {group: keys for group, keys in groups.items() if keys}


def _heading(group: str) -> str:
    return f"# --- {group} ".ljust(_WIDTH, "-")


def _comment(key: str, origin: str) -> str:
    said = _COMMENTS.get(key, "")
    there = "" if origin == key else f"{origin} there"
    return "; ".join(part for part in (there, said) if part)


def _entry(key: str, value: Any, comment: str) -> list[str]:
    if key == "datasets":
        return [_commented("datasets:", comment), *(line for source in value for line in _source(source))]
    return [_commented(f"{key}: {yaml_value(value)}", comment)]


def _source(source: Mapping[str, Any]) -> list[str]:
    lines = [f"{key}: {yaml_value(value)}" for key, value in source.items()]
    return [f"  {'- ' if index == 0 else '  '}{line}" for index, line in enumerate(lines)]


def _commented(line: str, comment: str) -> str:
    return f"{line.ljust(33)}  # {comment}" if comment else line


def _left_out(conversion: Conversion) -> list[str]:
    """What the recipe does not say, as comments at its end."""
    rows = conversion.of_kind("none", "unknown")
    if not rows:
        return []
    return ["", _heading("no counterpart"), *(f"# {_shown(row)}: {row.note}" for row in rows)]


def _shown(row: Row) -> str:
    value = " ".join(show(row.value).split())
    return f"{row.key}: {value if len(value) <= 60 else value[:57] + '…'}"


_PLAIN = re.compile(r"^[A-Za-z_/.~][\w/.@+~-]*$")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n", "~")


def yaml_value(value: Any) -> str:
    """A value on one line of YAML 1.1 and 1.2 alike."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        is_plain = _PLAIN.match(value) and value.lower() not in _WORDS and not value.startswith(".")
        plain = is_plain or re.match(r"^\.{1,2}/[\w/.@+~-]+$", value)
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{yaml_value(str(key))}: {yaml_value(said)}" for key, said in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(yaml_value(said) for said in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """``2.0e-5`` rather than ``2e-05``, which YAML 1.1 takes for text."""
    text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if 0 < abs(value) < 0.001:
        text = next(short for digits in range(17) if float(short := f"{value:.{digits}e}") == value)
    mantissa, mark, exponent = text.partition("e")
    if not mark:
        return text if "." in text or "inf" in text or "nan" in text else f"{text}.0"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent):+d}"
