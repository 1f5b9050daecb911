"""The model of a recipe: base, quantisation and method put together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hf_recipes.models.base import load_base
from hf_recipes.models.methods.bottleneck import BottleneckSettings, attach_bottleneck
from hf_recipes.models.methods.experts import (
    check_parameter_limits,
    choose_aux_loss,
    lora_targets,
    set_router_training,
    tell_unquantised_experts,
)
from hf_recipes.models.methods.ia3 import IA3Settings, attach_ia3
from hf_recipes.models.methods.lora import LoraSettings
from hf_recipes.models.methods.partial import PartialSettings, attach_partial
from hf_recipes.models.methods.prefix import PrefixSettings, attach_prefix
from hf_recipes.models.placement import sharded_by
from hf_recipes.models.quantized import QuantizationSettings, check_four_bits, choose_quantization, freeze_quantized
from hf_recipes.models.soundness import tell_soundness
from hf_recipes.models.source import ModelSource
from hf_recipes.models.stored import WHOLE_METHODS
from hf_recipes.models.trained_dtype import widen_trained
from hf_recipes.training.kept_start import attach_started_lora
from hf_recipes.training.parallelism import check_cut, tensor_parallel_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import ModelConfig

    from hf_recipes.models.precision import Precision
    from hf_recipes.recipe.keys import RecipeArguments
    from hf_recipes.training.setup import Setup

TASK_TYPES = {"causal_lm": "CAUSAL_LM", "sequence_classification": "SEQ_CLS"}


class MethodChoice(Protocol):
    """What a method is put on a model by: the part of `Setup` that a plan has too."""

    @property
    def model_settings(self) -> ModelConfig: ...

    @property
    def ours(self) -> RecipeArguments: ...

    @property
    def precision(self) -> Precision: ...


def build_for_method(
    setup: Setup,
    source: ModelSource,
    tokenizer: PreTrainedTokenizerBase,
    *,
    task: str = "causal_lm",
    longest_row: int | None = None,
    resume: Path | None = None,
    **arguments: Any,
) -> Any:
    """Load the base and apply the recipe's method.

    Args:
        setup: The recipe in HF's dataclasses.
        source: Where the base comes from.
        tokenizer: Checked against the embedding.
        task: A key of `TASK_TYPES`.
        longest_row: Tokens of the longest row, held against the model's positions.
        resume: A checkpoint the run goes on from: ranks and starts of LoRA that depend on the data come from there.
        arguments: Passed to ``from_pretrained``.

    Raises:
        UserError: the model cannot be loaded or trained by this method, or a target matches nothing.
    """
    settings, method = setup.model_settings, setup.ours.method
    quantization = choose_quantization(
        source,
        method,
        setup.precision.dtype,
        QuantizationSettings(
            quant_type=settings.bnb_4bit_quant_type,
            double_quant=settings.use_bnb_nested_quant,
            quant_storage=settings.bnb_4bit_quant_storage,
            load_in_8bit=settings.load_in_8bit,
        ),
        sharding=sharded_by(setup.arguments),
    )
    base = load_base(
        source,
        dtype=setup.precision.dtype,
        task=task,
        quantization=quantization,
        distributed_config=tensor_parallel_config(setup.arguments),
        attn_implementation=settings.attn_implementation,
        trust_remote_code=setup.arguments.trust_remote_code,
        **arguments,
    )
    prefix = setup.ours.num_virtual_tokens if method == "prefix" else 0
    tell_soundness(base, tokenizer, None if longest_row is None else longest_row + prefix)
    check_four_bits(base)
    if method not in WHOLE_METHODS:
        base = freeze_quantized(base, setup.precision.dtype)
        tell_unquantised_experts(base)
    router_coefficient = choose_aux_loss(
        base, setup.arguments.router_aux_loss_coef, router_is_trained=setup.ours.train_router
    )
    setup.arguments.router_aux_loss_coef = router_coefficient
    model = attach_method(base, setup, TASK_TYPES[task], resume)
    check_cut(model)
    if method not in WHOLE_METHODS:
        widen_trained(model, under_autocast=setup.precision.autocast)
    return model


def attach_method(model: PreTrainedModel, setup: MethodChoice, task_type: str, resume: Path | None = None) -> Any:
    """Put the recipe's method on a base, which may lie on the meta device."""
    return _ATTACH[setup.ours.method](model, setup, task_type, resume)


def _full(model: PreTrainedModel, setup: MethodChoice, task_type: str, resume: Path | None) -> Any:
    set_router_training(model, setup.ours.train_router)
    return model


def _partial(model: PreTrainedModel, setup: MethodChoice, task_type: str, resume: Path | None) -> Any:
    ours = setup.ours
    settings = PartialSettings(ours.trainable_layers or 0, ours.trainable_modules or (), ours.train_router)
    return attach_partial(model, settings, task_type=task_type, autocast_adapter_dtype=setup.precision.autocast)


def _lora(model: PreTrainedModel, setup: MethodChoice, task_type: str, resume: Path | None) -> Any:
    keys, ours = setup.model_settings, setup.ours
    targets = lora_targets(
        model,
        _as_list(keys.lora_target_modules),
        _as_list(keys.lora_target_parameters),
        keys.lora_modules_to_save,
        train_router=ours.train_router,
    )
    check_parameter_limits(
        targets.parameters,
        dropout=keys.lora_dropout,
        use_dora=ours.method == "dora",
        init_lora_weights=ours.init_lora_weights,
    )
    settings = LoraSettings(
        r=keys.lora_r,
        alpha=keys.lora_alpha,
        dropout=keys.lora_dropout,
        target_modules=targets.modules,
        target_parameters=targets.parameters,
        modules_to_save=targets.modules_to_save,
        use_rslora=keys.use_rslora,
        use_dora=ours.method == "dora",
        rank_pattern=ours.lora_rank_pattern,
        alpha_pattern=ours.lora_alpha_pattern,
        init_lora_weights=ours.init_lora_weights,
    )
    return attach_started_lora(model, settings, task_type, resume)


def _bottleneck(model: PreTrainedModel, setup: MethodChoice, task_type: str, resume: Path | None) -> Any:
    ours = setup.ours
    settings = BottleneckSettings(
        ours.adapter_size, ours.adapter_activation, ours.adapter_dropout, ours.adapter_target_modules
    )
    return attach_bottleneck(model, settings, task_type=task_type)


def _prefix(model: PreTrainedModel, setup: MethodChoice, task_type: str, resume: Path | None) -> Any:
    settings = PrefixSettings(setup.ours.num_virtual_tokens, setup.ours.prefix_projection)
    return attach_prefix(model, settings, task_type=task_type)


def _ia3(model: PreTrainedModel, setup: MethodChoice, task_type: str, resume: Path | None) -> Any:
    settings = IA3Settings(setup.ours.ia3_target_modules, setup.ours.ia3_feedforward_modules)
    return attach_ia3(model, settings, task_type=task_type)


_ATTACH: dict[str, Callable[[PreTrainedModel, MethodChoice, str, Path | None], Any]] = {
    "full": _full,
    "partial": _partial,
    "lora": _lora,
    "dora": _lora,
    "qlora": _lora,
    "adapter": _bottleneck,
    "prefix": _prefix,
    "ia3": _ia3,
}


def _as_list(value: str | list[str] | None) -> list[str] | None:
    """`ModelConfig` turns a list of one name into the bare name, which PEFT would read as a regular expression."""
    return [value] if isinstance(value, str) else value
