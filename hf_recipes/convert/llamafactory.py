"""LLaMA-Factory's YAML or JSON (llamafactory/hparams/*.py; what `TrainingArguments` takes goes by its rules)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_recipes.convert.answers import (
    Answer,
    Config,
    Rule,
    holds,
    is_on,
    lacks,
    listed,
    names_of,
    none,
    number_of,
    numeric,
    rename,
    same,
    switch,
    taken,
)
from hf_recipes.convert.common_rules import attention, dora, early_stopping, held_out, only_where
from hf_recipes.convert.engine import Default, Tool
from hf_recipes.convert.llamafactory_data import evaluation, max_samples, mix_strategy, training
from hf_recipes.convert.llamafactory_told import FAMILIES, TOLD
from hf_recipes.convert.places import ALPACA_JOINED
from hf_recipes.convert.trainer_keys import no_evaluation, trainer_rules
from hf_recipes.core.errors import UserError

_ATTENTIONS = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}


def _method(config: Config) -> str:
    """finetuning_type, quantization_bit and use_dora together."""
    kind = config.get("finetuning_type", "lora")
    if kind != "lora":
        return "partial" if kind == "freeze" else str(kind)
    if config.get("quantization_bit"):
        return "qlora"
    return "dora" if config.on("use_dora") else "lora"


def _is_lora(config: Config) -> bool:
    return config.get("finetuning_type", "lora") == "lora"


def _is_freeze(config: Config) -> bool:
    return bool(config.get("finetuning_type") == "freeze")


def _for_lora(rule: Rule) -> Rule:
    return only_where(_is_lora, rule, "finetuning_type: lora")


def _for_freeze(rule: Rule) -> Rule:
    return only_where(_is_freeze, rule, "finetuning_type: freeze")


def _kind(value: Any, config: Config) -> Answer:
    if value not in ("lora", "full", "freeze"):
        raise UserError(
            f"{config.path}: finetuning_type '{value}' has no counterpart here: convert with lora, or full."
        )
    return taken({"method": _method(config)})


def _bits(value: Any, config: Config) -> Answer:
    method = config.get("quantization_method", "bnb")
    if str(method).lower() not in ("bnb", "bitsandbytes") or value not in (4, 8, "4", "8"):
        return none(f"{value} bits by {method} are not trained on: method: qlora, 4 bits by bitsandbytes, is near")
    if not _is_lora(config):
        return none("a quantised base is trained by LoRA only, there too")
    return taken({"method": "qlora", **({"load_in_8bit": True} if int(value) == 8 else {})})


def _quantization_method(value: Any, config: Config) -> Answer:
    return same("bitsandbytes, as here") if str(value).lower() in ("bnb", "bitsandbytes") else none("bitsandbytes only")


def _target(value: Any, config: Config) -> Answer:
    names = names_of(value)
    return taken({"lora_target_modules": ["all-linear"] if names == ["all"] else names})


def _pissa(value: Any, config: Config) -> Answer:
    if not is_on(value):
        return same("off, as here")
    turns = int(number_of(config.get("pissa_iter", 16), "pissa_iter", config))
    return taken({"init_lora_weights": "pissa" if turns < 0 else f"pissa_niter_{turns}"})


def _template(value: Any, config: Config) -> Answer:
    return none(
        f"'{value}' is of LLaMA-Factory's own table: the tokenizer's chat template is used; `hf-recipes inspect` shows "
        "the text, and chat_template_path names a Jinja file where it should be another"
    )


def _train_on_prompt(value: Any, config: Config) -> Answer:
    return taken({"assistant_only_loss": not is_on(value)})


def _packing(value: Any, config: Config) -> Answer:
    if config.on("neat_packing") and not is_on(value):
        return same("neat_packing packs all the same, there too")
    apart = "" if config.on("neat_packing") or not is_on(value) else "there packed samples see each other, here never"
    return taken({"packing": is_on(value)}, apart)


def _neat_packing(value: Any, config: Config) -> Answer:
    return taken({"packing": True}, "packed samples never see each other") if is_on(value) else same("off there too")


def _attention(value: Any, config: Config) -> Answer:
    if value == "auto":
        return same("chosen by transformers, as here")
    if str(value) not in _ATTENTIONS:
        return none(f"attention '{value}' is not known here: flash_attention_2, sdpa or eager")
    return attention(_ATTENTIONS[str(value)])


def _stage(value: Any, config: Config) -> Answer:
    if value == "pt":
        return taken({"assistant_only_loss": False}, "sources are plain text: every token is learned")
    return same("supervised fine-tuning is what a recipe does")


def _freeze_modules(value: Any, config: Config) -> Answer:
    if names_of(value) == ["all"]:
        return same("whole layers, as here")
    return none("layers are trained whole: trainable_modules names single modules by name or end of name")


def _pure_bf16(value: Any, config: Config) -> Answer:
    return taken({"dtype": "bf16"}, "bf16 weights, as there") if is_on(value) else same("off, as here")


def _recompute(value: Any, config: Config) -> Answer:
    return taken({"activation_checkpointing": not is_on(value)})


def _shuffling(value: Any, config: Config) -> Answer:
    return taken({"train_sampling_strategy": "sequential"}) if is_on(value) else same("off, as here")


def _swanlab(value: Any, config: Config) -> Answer:
    return (
        taken({"report_to": "swanlab"}, "set up swanlab by its environment variables") if is_on(value) else same("off")
    )


def _dft(value: Any, config: Config) -> Answer:
    return none("the loss is plain cross-entropy") if is_on(value) else same("off, as here")


def _revision(value: Any, config: Config) -> Answer:
    return same("main, as here") if value == "main" else taken({"model_revision": str(value)})


_RULES: dict[str, Rule] = {
    **trainer_rules(),
    **TOLD,
    "model_name_or_path": rename("model_name_or_path"),
    "model_revision": _revision,
    "hf_hub_token": lacks("a secret has no place in a file: log in (`hf auth login`) or set HF_TOKEN"),
    "ms_hub_token": lacks("models and data come from the Hugging Face Hub or the disk"),
    "stage": _stage,
    "finetuning_type": _kind,
    "quantization_bit": _bits,
    "quantization_method": _quantization_method,
    "quantization_type": rename("bnb_4bit_quant_type"),
    "double_quantization": switch("use_bnb_nested_quant"),
    "lora_rank": _for_lora(numeric("lora_rank", "lora_r")),
    "lora_alpha": _for_lora(numeric("lora_alpha")),
    "lora_dropout": _for_lora(numeric("lora_dropout")),
    "lora_target": _for_lora(_target),
    "additional_target": _for_lora(listed("lora_modules_to_save")),
    "loraplus_lr_ratio": _for_lora(numeric("loraplus_lr_ratio")),
    "use_rslora": _for_lora(switch("use_rslora")),
    "use_dora": _for_lora(dora(_method)),
    "pissa_init": _for_lora(_pissa),
    "freeze_trainable_layers": _for_freeze(numeric("freeze_trainable_layers", "trainable_layers")),
    "freeze_trainable_modules": _for_freeze(_freeze_modules),
    "freeze_extra_modules": _for_freeze(listed("trainable_modules")),
    "pure_bf16": _pure_bf16,
    "dataset": training,
    "eval_dataset": evaluation,
    "dataset_dir": holds("told with dataset"),
    "template": _template,
    "cutoff_len": numeric("cutoff_len", "max_length"),
    "train_on_prompt": _train_on_prompt,
    "mask_history": switch("mask_history"),
    "streaming": switch("streaming"),
    "mix_strategy": mix_strategy,
    "max_samples": max_samples,
    "val_size": held_out("val_size"),
    "packing": _packing,
    "neat_packing": _neat_packing,
    "preprocessing_num_workers": numeric("preprocessing_num_workers", "dataset_num_proc"),
    "flash_attn": _attention,
    "disable_gradient_checkpointing": _recompute,
    "disable_shuffling": _shuffling,
    "early_stopping_steps": early_stopping("early_stopping_steps"),
    "use_swanlab": _swanlab,
    "use_dft_loss": _dft,
}


def _refuse(config: Config) -> None:
    stage = config.get("stage", "sft")
    if stage not in ("sft", "pt"):
        raise UserError(
            f"{config.path}: stage '{stage}' trains on preferences or rewards, and this tool trains on answers alone: "
            "there is no recipe for it."
        )
    if config.get("train_dataset") or config.get("peft_config"):
        raise UserError(
            f"{config.path}: this is the form of LLaMA-Factory's v1, which is not read here: give the one with "
            "model_name_or_path, finetuning_type and dataset."
        )


def _defaults(config: Config, recipe: Mapping[str, Any]) -> Sequence[Default]:
    method = _method(config)
    told = [
        Default({"method": method}, "LLaMA-Factory trains LoRA"),
        Default({"max_length": 2048}, "LLaMA-Factory's cutoff_len; ours is 1024"),
        Default({"learning_rate": 5e-5}, "LLaMA-Factory's; ours is 2e-4 for LoRA, 2e-5 for all weights"),
        Default({"lr_scheduler_type": "linear"}, "LLaMA-Factory's, to zero; ours is a cosine to a tenth of the peak"),
        Default({"warmup_steps": 0}, "LLaMA-Factory's; ours is 3 % of the run"),
        *no_evaluation("LLaMA-Factory", config, recipe),
    ]
    if _is_lora(config):
        rank = recipe.get("lora_r", 8)
        told += [
            Default({"lora_r": 8}, "LLaMA-Factory's lora_rank; ours is 16"),
            Default({"lora_alpha": 2 * rank}, "LLaMA-Factory's: twice the rank; ours is 32"),
            Default({"lora_dropout": 0.0}, "LLaMA-Factory's; ours is 0.05"),
            Default(
                {"lora_target_modules": ["all-linear"]}, "LLaMA-Factory's lora_target: all; ours are q_proj, v_proj"
            ),
        ]
    if method == "partial":
        told.append(Default({"trainable_layers": 2}, "LLaMA-Factory's freeze_trainable_layers"))
    if config.get("stage") == "pt":
        told += [
            Default({"packing": True}, "LLaMA-Factory packs plain text"),
            Default({"overlong": "split"}, "LLaMA-Factory cuts plain text into pieces; ours cuts it once"),
        ]
    else:
        told.append(
            Default(
                {}, "longer rows are cut there, answers too; here they are dropped and counted: overlong says otherwise"
            )
        )
        told.append(Default({}, ALPACA_JOINED))
    return told


LLAMAFACTORY = Tool(
    name="llamafactory",
    title="LLaMA-Factory",
    rules=_RULES,
    telling=frozenset(
        ("stage", "finetuning_type", "dataset_dir", "cutoff_len", "lora_target", "quantization_bit", "val_size",
         "neat_packing", "preprocessing_num_workers", "plot_loss", "overwrite_cache", "pissa_init", "flash_attn",
         "freeze_trainable_layers", "additional_target", "pure_bf16", "mix_strategy", "train_dataset", "peft_config",
         "dist_config", "model_class")
    ),
    defaults=_defaults,
    refuse=_refuse,
    families=FAMILIES,
)  # fmt: skip
