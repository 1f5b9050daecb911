"""The model of a recipe: base, quantisation and method put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_recipes.core.log import logger
from hf_recipes.models.base import check_vocabulary, load_base
from hf_recipes.models.lora import LoraSettings, attach_lora, count_parameters
from hf_recipes.models.precision import Precision
from hf_recipes.models.qlora import freeze_quantized, nf4_config
from hf_recipes.models.source import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import ModelConfig


@dataclass(frozen=True)
class BuiltModel:
    """A model ready to train, with what run.json tells of it."""

    model: Any
    trainable: int
    total: int


def build_for_method(
    method: str,
    source: ModelSource,
    tokenizer: PreTrainedTokenizerBase,
    settings: ModelConfig,
    precision: Precision,
    *,
    task: str = "causal_lm",
    **arguments: Any,
) -> BuiltModel:
    """Load the base and apply the recipe's method.

    Args:
        method: ``full``, ``lora``, ``dora`` or ``qlora``.
        source: Where the base comes from.
        tokenizer: Checked against the embedding.
        settings: The recipe's model keys (``lora_*``, ``attn_implementation`` …).
        precision: Dtype of the weights.
        task: ``causal_lm`` or ``sequence_classification``.
        arguments: Passed to ``from_pretrained``.

    Raises:
        UserError: the model cannot be loaded, or a LoRA target matches nothing.
    """
    if method == "qlora":
        storage = settings.bnb_4bit_quant_storage
        arguments["quantization"] = nf4_config(precision.dtype, storage, settings.bnb_4bit_quant_type)
    model = load_base(
        source,
        dtype=precision.dtype,
        task=task,
        attn_implementation=settings.attn_implementation,
        **arguments,
    )
    check_vocabulary(model, tokenizer)
    if method == "qlora":
        model = freeze_quantized(model)
    if method != "full":
        model = _attach(method, model, settings, task)
    trainable, total = count_parameters(model)
    logger.info("Training %s of %s parameters (%.2f %%).", f"{trainable:,}", f"{total:,}", 100 * trainable / total)
    return BuiltModel(model, trainable, total)


def _attach(method: str, model: PreTrainedModel, settings: ModelConfig, task: str) -> Any:
    lora = LoraSettings(
        r=settings.lora_r,
        alpha=settings.lora_alpha,
        dropout=settings.lora_dropout,
        target_modules=_as_list(settings.lora_target_modules),
        target_parameters=_as_list(settings.lora_target_parameters),
        modules_to_save=settings.lora_modules_to_save,
        use_rslora=settings.use_rslora,
        use_dora=method == "dora",
    )
    return attach_lora(model, lora, task_type="CAUSAL_LM" if task == "causal_lm" else "SEQ_CLS")


def _as_list(value: str | list[str] | None) -> list[str] | None:
    """`ModelConfig` turns a list of one name into the bare name, which PEFT would read as a regular expression."""
    return [value] if isinstance(value, str) else value
