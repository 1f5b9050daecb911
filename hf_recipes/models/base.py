"""The base model, loaded once, in one dtype, on one device a rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.ranks import world_size
from hf_recipes.models.source import ModelSource, one_sentence

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig, PreTrainedModel, PreTrainedTokenizerBase

AUTO_CLASSES = {"causal_lm": "AutoModelForCausalLM", "sequence_classification": "AutoModelForSequenceClassification"}


def load_base(
    source: ModelSource,
    *,
    dtype: str,
    task: str = "causal_lm",
    quantization: BitsAndBytesConfig | None = None,
    **arguments: Any,
) -> PreTrainedModel:
    """Load a base model.

    Args:
        source: From `find_model`.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        task: A key of `AUTO_CLASSES`.
        quantization: For 4-bit bases.
        arguments: Passed on to ``from_pretrained`` (``attn_implementation``, ``trust_remote_code``, ``num_labels`` …).

    Raises:
        UserError: it cannot be found, reached or loaded.
    """
    import torch
    import transformers

    if source.gguf_file:
        # Left packed, a GGUF base can neither be trained in full nor saved.
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    if quantization is not None:
        arguments["quantization_config"] = quantization
        arguments["device_map"] = {"": _rank_device()}
    with one_sentence(source):
        model = getattr(transformers, AUTO_CLASSES[task]).from_pretrained(
            source.name_or_path,
            dtype=getattr(torch, dtype),
            **source.load_arguments(),
            **{key: value for key, value in arguments.items() if value is not None},
        )
    if source.gguf_file:
        model.hf_quantizer = None
        del model.config.quantization_config
    model.config.use_cache = False  # no cache in training; restored for generation by `generate` itself
    return model


def _rank_device() -> str:
    """One device a rank: a device map that spreads a model over cards breaks distributed launches."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if world_size() > 1 else f"cuda:{torch.cuda.current_device()}"


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Stop when the tokenizer knows tokens the embedding has no row for (an index error deep inside, otherwise)."""
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise UserError(
            f"The tokenizer has {len(tokenizer)} tokens, the model's embedding only {rows} rows: use the tokenizer "
            "that belongs to the model."
        )
