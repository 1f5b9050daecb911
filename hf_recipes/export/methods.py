"""Which adapters can be merged by plain algebra, LoRA and (IA)³; every other is refused by its name."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.errors import UserError

# Settings of `LoraConfig` that the merge reads or that do not bear on it. Any other setting that is on is refused, so a
# method that a later PEFT adds is never merged as if it were plain LoRA.
UNDERSTOOD = frozenset(
    [
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_bias",
        "lora_dropout",
        "megatron_core",
        "modules_to_save",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "trainable_token_indices",
        "use_dora",
        "use_rslora",
        "corda_config",
        "loftq_config",
        "lora_ga_config",
    ]
)
# The same for `IA3Config`.
UNDERSTOOD_IA3 = frozenset(
    [
        "auto_mapping",
        "base_model_name_or_path",
        "exclude_modules",
        "fan_in_fan_out",
        "feedforward_modules",
        "inference_mode",
        "init_ia3_weights",
        "modules_to_save",
        "peft_type",
        "peft_version",
        "revision",
        "target_modules",
        "task_type",
    ]
)
# What is wrong with the others: their names, and why plain algebra would give another model.
REFUSED = {
    "alora_invocation_tokens": "aLoRA acts only after its invocation tokens, which no merged weight can do",
    "arrow_config": "Arrow chooses among adapters token by token, which no merged weight can do",
    "kasa_config": "KaSA also truncates the base's singular values",
    "layer_replication": "layer replication makes another model of the base",
    "megatron_config": "Megatron's parallel layers are laid out otherwise",
    "monteclora_config": "MonteCLoRA adds sampled weights",
    "target_parameters": "LoRA on bare parameters (fused experts, target_parameters) is laid out by expert",
    "use_bdlora": "BD-LoRA's matrices are block-diagonal",
    "use_qalora": "QA-LoRA pools the inputs of a GPTQ base",
    "velora_config": "VeLoRA stores more than A and B",
}
_NOTHING_TO_MERGE = ("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT", "CPT")
# Initialisations that leave the base as it is; the others subtract from it or quantise it.
_KIND_TO_BASE = ("gaussian", "eva", "orthogonal", "mica", "true", "false")


def refuse_unsupported(config: dict[str, Any], where: str) -> None:
    """Raise `UserError` unless the adapter of this ``adapter_config.json`` is one whose merge is plain algebra.

    Args:
        config: the parsed file.
        where: its directory, for the sentence.
    """
    kind = config.get("peft_type")
    if kind in _NOTHING_TO_MERGE:
        raise UserError(f"{where} is a {kind} adapter: it changes no weight, so serve it beside its base, unmerged.")
    if str(kind).endswith("BOTTLENECK"):
        raise UserError(
            f"{where} is a bottleneck adapter: it is not linear, so it has nothing to merge: serve it beside its base."
        )
    if kind not in ("LORA", "IA3"):
        raise UserError(f"{where} is a {kind} adapter, which is not merged here: use peft's merge_and_unload for it.")
    for key, value in config.items():
        if not value or key in (UNDERSTOOD if kind == "LORA" else UNDERSTOOD_IA3):
            continue
        reason = REFUSED.get(key, "this method is not known here")
        raise UserError(f"{where} cannot be merged ({key} is set): {reason}; use the adapter unmerged, through peft.")
    _refuse_changed_base(config, where)


def _refuse_changed_base(config: dict[str, Any], where: str) -> None:
    start = config.get("init_lora_weights")
    if start is None or str(start).lower() in _KIND_TO_BASE:
        return
    raise UserError(
        f"{where} was initialised by '{start}', which changed the base it was trained on: merge the run's adapter/, "
        "which is plain LoRA for the base as published, or make a copy of this one so (hf_recipes.make_plain_lora)."
    )
