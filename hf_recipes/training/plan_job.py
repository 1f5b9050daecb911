"""What a recipe asks of a machine, read before anything is loaded: the model's shapes with the method on it, and the
job's settings. Neither trl nor weights are needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.models.precision import Hardware, Precision, detect_hardware
from hf_recipes.models.source import ModelSource, find_model, one_sentence, tell_trusted_code
from hf_recipes.models.stored import WHOLE_METHODS, check_stored, stored_quantization
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.settings import Attention, Checkpointing, Loss, TrainingSettings
from hf_recipes.recipe.key_table import load_key_table
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.arguments import recipe_precision

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_PADDED_TO = 8  # rows of a batch are, as the collator does it


@dataclass(frozen=True)
class PlannedRecipe:
    """A recipe as planning sees it: the values of all keys, given or default, by owner; see `training.model`'s
    `MethodChoice`."""

    model_settings: Any
    ours: Any
    trainer: Any
    precision: Precision
    stored: Mapping[str, Any] | None = None

    def with_config(self, config: PreTrainedConfig) -> PlannedRecipe:
        """The same over a base that may be stored quantised, as its config says."""
        stored: Any = getattr(config, "quantization_config", None)
        as_dict = stored.to_dict() if hasattr(stored, "to_dict") else stored
        return replace(self, stored=dict(as_dict)) if as_dict else self


def planned_recipe(recipe: Recipe, hardware: Hardware) -> PlannedRecipe:
    """Fill a recipe up with the defaults of `ModelConfig`, `SFTConfig` and our own keys, without importing trl.

    Args:
        recipe: checked.
        hardware: what it is to run on, which decides the precision it leaves open.
    """
    owners: dict[str, dict[str, Any]] = {"ModelConfig": {}, "RecipeArguments": {}, "SFTConfig": {}}
    for name, spec in load_key_table().items():
        value = recipe.values.get(name, spec.default)
        owners[spec.owner][name] = value
    # Starts are a matter of values, and some read the base's: shapes are those of a plain one.
    owners["RecipeArguments"]["init_lora_weights"] = "default"
    owners["SFTConfig"]["activation_checkpointing"] = recipe.values.get("activation_checkpointing", False)
    return PlannedRecipe(
        model_settings=SimpleNamespace(**owners["ModelConfig"]),
        ours=SimpleNamespace(**owners["RecipeArguments"]),
        trainer=SimpleNamespace(**owners["SFTConfig"]),
        precision=recipe_precision(recipe, hardware),
    )


def load_config(recipe: Recipe) -> tuple[ModelSource, PreTrainedConfig]:
    """The base's config alone; a GGUF file's header serves too.

    Raises:
        UserError: there is no such model, or the Hub cannot be reached.
    """
    from transformers import AutoConfig

    source = find_model(recipe.get("model_name_or_path"), recipe.get("model_revision"))
    trusted = bool(recipe.get("trust_remote_code"))
    if trusted:
        tell_trusted_code(source)
    with one_sentence(source):
        config = AutoConfig.from_pretrained(source.name_or_path, trust_remote_code=trusted, **source.load_arguments())
    _check_task(recipe, config)
    if (stored := stored_quantization(source)) is not None:
        check_stored(stored, recipe.get("method", "lora"))
    return source, config


def _check_task(recipe: Recipe, config: PreTrainedConfig) -> None:
    """Raise `UserError` for a model that does not continue text."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or type(config.get_text_config()) in MODEL_FOR_CAUSAL_LM_MAPPING
    if config.is_encoder_decoder or not (known or remote):
        raise UserError(
            f"'{recipe.get('model_name_or_path')}' is a {config.model_type} model, no causal language model: name one "
            "that continues text."
        )


def recipe_geometry(planned: PlannedRecipe, config: PreTrainedConfig) -> Geometry:
    """The shapes of the model with the recipe's method on it, on the meta device.

    Raises:
        UserError: a target of the method matches nothing, or the class cannot be built from the config.
    """
    from hf_recipes.plan.read_geometry import read_geometry
    from hf_recipes.training.model import attach_method

    def attach(model: Any) -> Any:
        if planned.ours.method not in WHOLE_METHODS:
            model.requires_grad_(False)
        return attach_method(model, planned, "CAUSAL_LM")

    return read_geometry(config, attach)


def recipe_settings(
    planned: PlannedRecipe, geometry: Geometry, tokens: int, *, supervised_share: float = 1.0
) -> TrainingSettings:
    """The job's settings for rows of at most `tokens`.

    Args:
        planned: from `planned_recipe`.
        geometry: whether the head is plain decides how the loss is computed.
        tokens: of the longest row.
        supervised_share: labelled tokens among all.
    """
    trainer, keys, ours, precision = planned.trainer, planned.model_settings, planned.ours, planned.precision
    whole = ours.method in WHOLE_METHODS
    autocast = "bfloat16" if precision.bf16 else "float16" if precision.fp16 else None
    return TrainingSettings(
        method=ours.method,
        weights_dtype=precision.dtype,
        trained_dtype=precision.dtype if ours.method == "full" or (whole and autocast is None) else "float32",
        autocast_dtype=autocast,
        quantization=_quantization(planned),
        double_quantization=bool((planned.stored or {}).get("bnb_4bit_use_double_quant", keys.use_bnb_nested_quant)),
        optimizer=str(getattr(trainer.optim, "value", trainer.optim)),
        micro_batch=int(trainer.per_device_train_batch_size),
        tokens=-(-tokens // _PADDED_TO) * _PADDED_TO,
        supervised_share=supervised_share,
        accumulation=int(trainer.gradient_accumulation_steps),
        attention=_attention(keys.attn_implementation),
        packed=bool(trainer.packing),
        checkpointing=checkpointing_name(trainer.activation_checkpointing, trainer.activation_checkpointing_kwargs),
        loss=_loss(ours, geometry),
        compiled=bool(trainer.torch_compile),
        lora_dropout=float(keys.lora_dropout),
    )


def _quantization(planned: PlannedRecipe) -> str | None:
    stored = planned.stored or {}
    if stored.get("load_in_4bit") or stored.get("load_in_8bit"):
        return "nf4" if stored.get("load_in_4bit") else "int8"
    if planned.ours.method != "qlora":
        return None
    return "int8" if planned.model_settings.load_in_8bit else "nf4"


def _attention(asked: str | None) -> Attention:
    known: dict[str, Attention] = {"eager": "eager", "flash_attention_2": "flash_attention_2"}
    return known.get(asked or "sdpa", "flash_attention_2" if asked and "flash" in asked else "sdpa")


def _loss(ours: Any, geometry: Geometry) -> Loss:
    if ours.loss_kernel in ("liger", "cce"):
        return "fused"
    router_is_trained = geometry.experts > 0 and ours.train_router
    return "chunked" if geometry.plain_head and not router_is_trained else "trl_chunked"


def checkpointing_name(on: Any, kwargs: Mapping[str, Any] | None) -> Checkpointing:
    """The name of a way of activation checkpointing, from the Trainer's two keys."""
    if not on:
        return "off"
    kwargs = kwargs or {}
    if kwargs.get("offload"):
        return "host"
    if kwargs.get("selective"):
        return "selective"
    every: dict[int, Checkpointing] = {2: "every_2", 3: "every_3", 4: "every_4"}
    return every.get(int(kwargs.get("every_n_layers", 1)), "all")


def settings_dict(settings: TrainingSettings) -> dict[str, Any]:
    """Plain values for plan.json."""
    return {item.name: getattr(settings, item.name) for item in fields(settings)}


def memory_dict(memory: MemoryEstimate) -> dict[str, Any]:
    """An estimate as plain values, in bytes."""
    return {
        "device_bytes": memory.device_bytes,
        "active_bytes": memory.active_bytes,
        "peak_phase": memory.peak_phase,
        "phases": {phase: dict(parts) for phase, parts in memory.phases.items()},
        "host": dict(memory.host),
    }


def planning_hardware(dtype_flops: Mapping[str, float], device: str) -> Hardware:
    """What a device can compute in, as `choose_precision` asks: a catalogue entry by its rates, this CPU as the run
    itself will ask it."""
    return detect_hardware() if device == "cpu" else Hardware(device, "bfloat16" in dtype_flops)
