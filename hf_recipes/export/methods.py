"""Which way an adapter is merged: LoRA and (IA)³ by plain algebra, some others by PEFT in memory, the rest is refused
by its name."""

from __future__ import annotations

from typing import Any, Literal

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
        # MonteCLoRA and VeLoRA differ from plain LoRA in training only.
        "monteclora_config",
        "velora_config",
        "modules_to_save",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "target_parameters",
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
    "layer_replication": "layer replication makes another model of the base",
    "megatron_config": "Megatron's parallel layers are laid out otherwise",
    "use_qalora": "QA-LoRA pools the inputs of a GPTQ base, and neither peft nor this has a merge for it",
}
# Settings of LoRA, and PEFT's other methods, whose merge is left to PEFT, with the whole model in memory.
IN_MEMORY_SETTINGS = {
    "kasa_config": "KaSA also truncates the base's singular values",
    "use_bdlora": "BD-LoRA's matrices are block-diagonal",
}
# Each was merged by peft 0.21.2 and gave the logits of its live adapter. What peft has besides cannot be merged by it
# either (Lily, Poly, X-LoRA, Shadow), or was not tried (AdaMSS).
IN_MEMORY = (
    "ADALORA",
    "BEFT",
    "BOFT",
    "C3A",
    "DEFT",
    "DELORA",
    "FOURIERFT",
    "FROD",
    "GLORA",
    "GRALORA",
    "HIRA",
    "HRA",
    "LN_TUNING",
    "LOHA",
    "LOKR",
    "MISS",
    "OFT",
    "OSF",
    "PEANUT",
    "PSOFT",
    "PVERA",
    "RANDLORA",
    "ROAD",
    "SHIRA",
    "SUPERTUNING",
    "TINYLORA",
    "TRAINABLE_TOKENS",
    "UNILORA",
    "VBLORA",
    "VERA",
    "WAVEFT",
)
_NOTHING_TO_MERGE = (
    "PROMPT_TUNING",
    "P_TUNING",
    "PREFIX_TUNING",
    "MULTITASK_PROMPT_TUNING",
    "ADAPTION_PROMPT",
    "CPT",
    "CARTRIDGE",
)
Route = Literal["stream", "in_memory"]
# Initialisations that leave the base as it is; the others subtract from it or quantise it.
_KIND_TO_BASE = ("gaussian", "eva", "orthogonal", "mica", "true", "false")


def route(config: dict[str, Any], where: str) -> Route:
    """The way an adapter is merged: ``stream`` for plain algebra, ``in_memory`` where PEFT has to do it.

    Args:
        config: the parsed ``adapter_config.json``.
        where: its directory, for the sentence.

    Raises:
        UserError: there is nothing to merge, no merged weight could do what the adapter does, its start changed the
            base, or it has a setting that is not known here.
    """
    kind = config.get("peft_type")
    if kind in _NOTHING_TO_MERGE:
        raise UserError(f"{where} is a {kind} adapter: it changes no weight, so serve it beside its base, unmerged.")
    if str(kind).endswith("BOTTLENECK"):
        raise UserError(
            f"{where} is a bottleneck adapter: it is not linear, so it has nothing to merge: serve it beside its base."
        )
    if kind in IN_MEMORY:
        return "in_memory"
    if kind not in ("LORA", "IA3"):
        raise UserError(
            f"{where} is a {kind} adapter, which is not merged here: use the adapter unmerged, through peft."
        )
    understood = UNDERSTOOD | set(IN_MEMORY_SETTINGS) if kind == "LORA" else UNDERSTOOD_IA3
    for key, value in config.items():
        if value and key not in understood:
            reason = REFUSED.get(key, "this method is not known here")
            raise UserError(
                f"{where} cannot be merged ({key} is set): {reason}; use the adapter unmerged, through peft."
            )
    _refuse_changed_base(config, where)
    return "in_memory" if kind == "LORA" and any(config.get(key) for key in IN_MEMORY_SETTINGS) else "stream"


def refuse_unsupported(config: dict[str, Any], where: str) -> None:
    """Raise `UserError` unless the adapter of this ``adapter_config.json`` is one whose merge is plain algebra; see
    `route`."""
    if route(config, where) != "stream":
        why = next((text for key, text in IN_MEMORY_SETTINGS.items() if config.get(key)), config.get("peft_type"))
        raise UserError(f"{where} is not plain LoRA ({why}), so it can only be merged alone and by peft, in memory.")


def _refuse_changed_base(config: dict[str, Any], where: str) -> None:
    start = config.get("init_lora_weights")
    if start is None or str(start).lower() in _KIND_TO_BASE:
        return
    if str(start).lower() == "loftq":
        raise UserError(
            f"{where} was initialised by '{start}', so it fits only the quantised values it started from: save that "
            "base and give it with --base, with init_lora_weights true in adapter_config.json."
        )
    raise UserError(
        f"{where} was initialised by '{start}', which changed the base it was trained on: merge the run's adapter/, "
        "which is plain LoRA for the base as published, or make a copy of this one so (hf_recipes.make_plain_lora, or "
        "peft's save_pretrained with path_initial_model_for_weight_conversion)."
    )
