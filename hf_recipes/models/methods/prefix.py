"""Prefix tuning (Li and Liang 2021, arXiv:2101.00190): trained keys and values before the text, in every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.models.methods.values import truth, whole_number

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

# The spread GPT-2 and Llama initialise their own weights with. PEFT's prefix starts with a spread of one instead, which
# draws most of the attention to itself: SmolLM2-135M's loss on plain text jumps from 2.1 to 11.1 before the first step.
INITIAL_SPREAD = 0.02


@dataclass(frozen=True)
class PrefixSettings:
    """The knobs of a prefix; names and meaning as in `peft.PrefixTuningConfig`.

    Args:
        num_virtual_tokens: Length of the prefix; it takes that many of the model's positions.
        prefix_projection: Train the prefix as the output of a two-layer MLP. Steadier, with several times the
            parameters; only the output is saved, so such a run cannot be resumed.
    """

    num_virtual_tokens: int = 20
    prefix_projection: bool = False


def attach_prefix(
    model: PreTrainedModel,
    settings: PrefixSettings,
    *,
    task_type: str = "CAUSAL_LM",
    autocast_adapter_dtype: bool = True,
) -> PeftModel:
    """Put a prefix on `model`, whose own weights are frozen.

    Text stands at the positions from `num_virtual_tokens` on, and each token sees the whole prefix and the text up to
    itself; without an attention mask too, and whatever stands in its batch.

    Args:
        model: The base model, a decoder.
        settings: Length and projection.
        task_type: PEFT's task type; only ``CAUSAL_LM`` can be had.
        autocast_adapter_dtype: Keep the prefix in fp32 over a 16-bit base, so that small updates are not rounded away.

    Raises:
        UserError: a value is of the wrong kind, or the model recomputes activations, is a classifier, has no keys and
            values, or fewer positions.
    """
    from peft import PrefixTuningConfig, get_peft_model

    settings = replace(
        settings,
        num_virtual_tokens=whole_number("num_virtual_tokens", settings.num_virtual_tokens, 1),
        prefix_projection=truth("prefix_projection", settings.prefix_projection),
    )
    _check(model, settings, task_type)
    config = PrefixTuningConfig(
        num_virtual_tokens=settings.num_virtual_tokens,
        prefix_projection=settings.prefix_projection,
        task_type=task_type,
    )
    try:
        attached = get_peft_model(model, config, autocast_adapter_dtype=autocast_adapter_dtype)
    except ValueError as error:
        raise UserError(
            f"{type(model).__name__} takes no prefix ({error}): it lacks attention layers with keys and values; use "
            "method: lora."
        ) from None
    _start_small(attached.prompt_encoder[attached.active_adapter])
    if not autocast_adapter_dtype:
        attached.prompt_encoder.to(model.dtype)
    return generate_with_prefix(attached)


def _check(model: PreTrainedModel, settings: PrefixSettings, task_type: str) -> None:
    text = model.config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if positions is not None and settings.num_virtual_tokens >= positions:
        raise UserError(
            f"num_virtual_tokens: a prefix of {settings.num_virtual_tokens} leaves no room for text in the model's "
            f"{positions} positions: give fewer."
        )
    if task_type != "CAUSAL_LM":
        raise UserError("method: prefix trains language models only, a classifier takes no prefix: use method: lora.")
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise UserError(
            "gradient_checkpointing: a prefix lives in the cache, which recomputation of activations cannot use: turn "
            "it off with method: prefix."
        )
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        logger.warning(
            "The model's sliding attention sees %d positions back: in those layers the prefix counts as text and is "
            "out of sight for later tokens.",
            text.sliding_window,
        )


def _start_small(encoder: Any) -> None:
    """Draw the prefix, or the last layer of its MLP, anew; not zero, for equal tokens would stay equal."""
    from torch import nn

    last = encoder.transform[-1] if encoder.prefix_projection else encoder.embedding
    nn.init.normal_(last.weight, std=INITIAL_SPREAD)
    if encoder.prefix_projection:
        nn.init.zeros_(last.bias)


def generate_with_prefix(model: PeftModel) -> PeftModel:
    """Let `model.generate` use the prefix; call it on a model that `PeftModel.from_pretrained` loaded, too.

    transformers (since it calls `past_key_values` ``cache``) gives `generate` an empty cache besides PEFT's, and the
    model takes the empty one: the answers are those of the base model, with a warning at most. A model with another
    method is left as it is.
    """
    if model.active_peft_config.peft_type != "PREFIX_TUNING":
        return model
    prepare: Any = model.base_model_prepare_inputs_for_generation
    if not (isinstance(prepare, partial) and prepare.func is _prepare_with_prefix):
        model.base_model_prepare_inputs_for_generation = partial(_prepare_with_prefix, prepare)
    return model


def _prepare_with_prefix(prepare: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """`prepare`'s inputs with the cache under the name PEFT looks for; without one where none is used, for the prefix
    comes with each step then."""
    inputs = prepare(*args, **kwargs)
    cache = inputs.pop("cache", None)
    if cache is not None and inputs.get("use_cache", True):
        inputs["past_key_values"] = cache
    return inputs
