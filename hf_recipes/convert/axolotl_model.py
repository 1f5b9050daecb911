"""Axolotl's keys for the model, the adapter and how they are held (schemas/model.py, peft.py, loaders/)."""

from __future__ import annotations

from typing import Any

from hf_recipes.convert.answers import (
    Answer,
    Config,
    Rule,
    holds,
    is_nothing,
    is_off,
    is_on,
    lacks,
    listed,
    names_of,
    none,
    numeric,
    rename,
    same,
    switch,
    taken,
)
from hf_recipes.convert.common_rules import attention, dora, lora_start, only_where
from hf_recipes.convert.trainer_keys import (
    TRUST,
    fp16,
)
from hf_recipes.core.errors import UserError

_ATTENTIONS = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "flex_attention": "flex_attention",
}


def method_of(config: Config) -> str:
    """The recipe's method: adapter, load_in_4bit and peft_use_dora together; no adapter trains every weight."""
    if is_nothing(config.get("adapter", "")):
        return "full"
    if config.on("load_in_4bit") or config.on("load_in_8bit"):
        return "qlora"
    return "dora" if config.on("peft_use_dora") else "lora"


def _has_adapter(config: Config) -> bool:
    return method_of(config) != "full"  # configurations keep their lora_r when they turn the adapter off


def _adapter(value: Any, config: Config) -> Answer:
    if is_nothing(value):
        return same("none: every weight is trained")
    if str(value) not in ("lora", "qlora"):
        raise UserError(
            f"{config.path}: adapter '{value}' has no counterpart here: convert with adapter: lora, or qlora."
        )
    return taken({"method": method_of(config)})


def _load_in_8bit(value: Any, config: Config) -> Answer:
    if not is_on(value):
        return same("off, as here")
    return taken({"method": method_of(config), "load_in_8bit": True}, "method: qlora on an 8-bit base")


def _load_in_4bit(value: Any, config: Config) -> Answer:
    if not is_on(value):
        return same("off, as here")
    return taken({"method": method_of(config)}, "an NF4 base with double quantisation")


def _target_modules(value: Any, config: Config) -> Answer:
    modules = names_of(value)
    if isinstance(value, str) and set(value) & set("()[]*+?\\|^$"):
        return none("a regular expression: write the modules' names")
    if config.on("lora_target_linear"):
        if set(modules) & {"lm_head", "embed_tokens"}:
            return none("all-linear leaves head and embeddings out: name all modules, these among them")
        return same("all linear layers are targets by lora_target_linear")
    if modules in (["all-linear"], []):
        return taken({"lora_target_modules": ["all-linear"]}) if modules else same("none named")
    return taken({"lora_target_modules": modules})


def _target_linear(value: Any, config: Config) -> Answer:
    return taken({"lora_target_modules": ["all-linear"]}) if is_on(value) else same("off, as here")


def _bf16(value: Any, config: Config) -> Answer:
    if is_off(value):
        return taken({"bf16": False}) if not config.on("fp16") else same("fp16 is on")
    return same("bf16 wherever the hardware has it is our default")


def _half(name: str) -> Rule:
    def rule(value: Any, config: Config) -> Answer:
        return taken({"dtype": name}) if is_on(value) else same("off, as here")

    return rule


def _fsdp_checkpoints(config: Config) -> bool:
    settings = config.get("fsdp_config")
    keys = ("activation_checkpointing", "fsdp_activation_checkpointing")
    return isinstance(settings, dict) and any(is_on(settings.get(key, False)) for key in keys)


def _checkpointing(value: Any, config: Config) -> Answer:
    if is_off(value) and _fsdp_checkpoints(config):
        return same("told with fsdp_config")
    if str(value).startswith("offload"):
        return taken({"activation_checkpointing": True, "activation_offloading": True})
    return taken({"activation_checkpointing": is_on(value)})


def _offloading(value: Any, config: Config) -> Answer:
    return same("off, as here") if is_nothing(value) else taken({"activation_offloading": True})


def _attention(value: Any, config: Config) -> Answer:
    name = str(value)
    if name in ("xformers", "sage", "fp8"):
        return none(f"attention '{name}' is not offered: flash_attention_2 or sdpa")
    return attention(name)


def _old_attention(key: str) -> Rule:
    def rule(value: Any, config: Config) -> Answer:
        if not is_on(value):
            return same("off there too")
        return attention(_ATTENTIONS[key])

    return rule


def _special_tokens(value: Any, config: Config) -> Answer:
    if not isinstance(value, dict):
        return same("none named")
    pad = same("padding is masked by position: any token will do")
    other = "the tokenizer's own tokens are used: change it, and the model's embeddings, beforehand"
    parts = tuple((key, pad if key == "pad_token" else none(other)) for key in value)
    return Answer("same", {}, "", parts)


def _template(value: Any, config: Config) -> Answer:
    name = str(value)
    if name.startswith("tokenizer_default"):
        return same("the tokenizer's own chat template, as here")
    if name == "jinja":
        return same("told with chat_template_jinja")
    return none(f"'{name}' is Axolotl's own template: the tokenizer's is used, or a Jinja file by chat_template_path")


def _template_jinja(value: Any, config: Config) -> Answer:
    if "{" not in str(value) and config.find(str(value)):
        return taken({"chat_template_path": str(value)}, "looked for where `hf-recipes` is started")
    return none("write the template to a file, and name it as chat_template_path")


def _tokenizer(value: Any, config: Config) -> Answer:
    if value == config.get("base_model"):
        return same("the model's own, as here")
    return none("the tokenizer is the model's: put its files into the model's directory")


def _model_class(value: Any, config: Config) -> Answer:
    if "SequenceClassification" in str(value):
        raise UserError(f"{config.path}: '{value}' trains a classifier: write a recipe for `hf-recipes classify`.")
    return same("found from the model's config")


def _plugins(value: Any, config: Config) -> Answer:
    parts = []
    for index, name in enumerate(value if isinstance(value, list) else [value]):
        known = any(word in str(name) for word in ("liger", "cut_cross_entropy"))
        answer = (
            same("told with its own keys; loss_kernel: auto takes what is fastest and exact")
            if known
            else none("no plugins are loaded: a callback of your own goes into your own script")
        )
        parts.append((f"[{index}]", answer))
    return Answer("same", {}, "", tuple(parts))


def _cut_cross_entropy(value: Any, config: Config) -> Answer:
    return taken({"loss_kernel": "cce"}) if is_on(value) else same("off there too")


def _fused_liger(value: Any, config: Config) -> Answer:
    return taken({"loss_kernel": "liger"}) if is_on(value) else same("off there too")


_ADAPTER_KEYS = (
    "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear", "lora_target_parameters",
    "lora_modules_to_save", "lora_rank_pattern", "lora_alpha_pattern", "loraplus_lr_ratio", "peft_use_dora",
    "peft_use_rslora", "peft_init_lora_weights", "load_in_4bit", "load_in_8bit",
)  # fmt: skip


_RULES: dict[str, Rule] = {
    **{key: _old_attention(key) for key in _ATTENTIONS},
    **dict.fromkeys(("xformers_attention", "sage_attention"), lacks("not offered: flash_attention_2 or sdpa")),
    **{key: numeric(key) for key in ("lora_r", "lora_alpha", "lora_dropout", "loraplus_lr_ratio")},
    **{
        key: rename(key)
        for key in ("lora_rank_pattern", "lora_alpha_pattern", "torch_compile_backend", "torch_compile_mode")
    },
    "s2_attention": lacks("shifted-sparse attention is not offered"),
    "base_model": rename("model_name_or_path"),
    "trust_remote_code": TRUST,
    "model_revision": rename("model_revision"),
    "revision_of_model": rename("model_revision"),
    "base_model_config": _tokenizer,
    "tokenizer_config": _tokenizer,
    "tokenizer_type": holds("found from the tokenizer's config"),
    "model_type": _model_class,
    "type_of_model": _model_class,
    "processor_type": lacks("only text models are trained"),
    "adapter": _adapter,
    "load_in_4bit": _load_in_4bit,
    "load_in_8bit": _load_in_8bit,
    "peft_use_dora": dora(method_of),
    "peft_use_rslora": switch("use_rslora"),
    "peft_init_lora_weights": lora_start,
    "lora_target_modules": _target_modules,
    "lora_target_linear": _target_linear,
    "lora_target_parameters": listed("lora_target_parameters"),
    "lora_modules_to_save": listed("lora_modules_to_save"),
    "special_tokens": _special_tokens,
    "chat_template": _template,
    "chat_template_jinja": _template_jinja,
    "bf16": _bf16,
    "fp16": fp16,
    "bfloat16": _half("bf16"),
    "float16": _half("fp16"),
    "float32": _half("fp32"),
    "tf32": lambda value, config: same("chosen by itself") if value == "auto" else taken({"tf32": is_on(value)}),
    "gradient_checkpointing": _checkpointing,
    "gradient_checkpointing_kwargs": rename("activation_checkpointing_kwargs"),
    "activation_offloading": _offloading,
    "attn_implementation": _attention,
    "torch_compile": lambda value, config: taken({"torch_compile": value == "auto" or is_on(value)}),
    "plugins": _plugins,
    "cut_cross_entropy": _cut_cross_entropy,
    "liger_fused_linear_cross_entropy": _fused_liger,
}
MODEL_RULES: dict[str, Rule] = {
    **_RULES,
    **{key: only_where(_has_adapter, _RULES[key], "an adapter") for key in _ADAPTER_KEYS},
}
