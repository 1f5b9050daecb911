"""Bases whose weights are stored quantised: what their config.json says, and which methods can train on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.models.source import ModelSource, one_sentence

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers.quantizers import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

# Methods that change the base's own weights; all others train something beside it.
WHOLE_METHODS = ("full", "partial")


def stored_quantization(source: ModelSource, **hub_arguments: Any) -> dict[str, Any] | None:
    """The ``quantization_config`` in a base's config.json, or None; no weights are read.

    Args:
        source: From `find_model`; a GGUF file has none (it is dequantised while loading).
        hub_arguments: ``token``, ``cache_dir`` … for the Hub.

    Raises:
        UserError: the config cannot be found or read.
    """
    if source.gguf_file:
        return None
    from transformers import PretrainedConfig

    with one_sentence(source):
        config, _ = PretrainedConfig.get_config_dict(source.name_or_path, **source.load_arguments(), **hub_arguments)
    return config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")


def describe_stored(stored: dict[str, Any]) -> str:
    """``nf4 (bitsandbytes)``, ``8-bit (bitsandbytes)``, ``bitnet, online`` or the name of the quantisation."""
    name = str(stored.get("quant_method", "an unnamed method"))
    if stored.get("load_in_4bit"):
        return f"{stored.get('bnb_4bit_quant_type', 'fp4')} (bitsandbytes)"
    if stored.get("load_in_8bit"):
        return "8-bit (bitsandbytes)"
    mode = stored.get("quantization_mode", "offline") if name == "bitnet" else None
    return f"{name}, {mode}" if mode else name


def check_stored(stored: dict[str, Any], method: str) -> QuantizationConfigMixin | None:
    """Whether `method` can train a base that is stored quantised, and what it must be loaded with.

    Adapters need a quantisation that passes gradients on (transformers' ``is_trainable``); training the weights
    themselves needs one that keeps master weights (``is_qat_trainable``: BitNet's online mode). Where neither holds,
    a quantisation that can be undone while loading (fp8, mxfp4 …) is, and this is told.

    Args:
        stored: From `stored_quantization`.
        method: The recipe's method.

    Returns:
        What ``from_pretrained`` needs as ``quantization_config``; None for what is stored.

    Raises:
        UserError: the method cannot train this base, a package is missing, or transformers does not know the
            quantisation.
    """
    kind = describe_stored(stored)
    quantizer = _quantizer(stored, kind)
    whole = method in WHOLE_METHODS
    if quantizer.is_qat_trainable if whole else _trains_adapters(quantizer, kind):
        logger.info("%s", _what_happens(kind, method))
        return None
    config = quantizer.quantization_config
    can_undo = hasattr(config, "dequantize")
    if can_undo and method != "qlora":
        logger.info("The base is stored as %s: dequantised while loading.", kind)
        config.dequantize = True
        return config
    raise UserError(
        f"The base is stored as {kind}, which 'method: {method}' cannot train: {_cure(stored, whole, can_undo)}."
    )


def cast_unquantized(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give embeddings, norms and head of a stored bitsandbytes base the dtype asked for.

    transformers leaves them in the one they were saved in, and layers that compute in another one fail or cost memory.
    """
    import torch
    from torch import nn

    kept = set(model._keep_in_fp32_modules_strict or ())
    if dtype == torch.float16:
        kept |= set(model._keep_in_fp32_modules or ())
    for name, parameter in model.named_parameters():
        plain = type(parameter) is nn.Parameter and parameter.is_floating_point()  # packed weights are a subclass
        if plain and parameter.dtype != dtype and not kept & set(name.split(".")):
            parameter.data = parameter.data.to(dtype)


def _quantizer(stored: dict[str, Any], kind: str) -> HfQuantizer:
    from transformers.quantizers import AutoHfQuantizer

    try:
        return AutoHfQuantizer.from_config(dict(stored), pre_quantized=True)
    except ImportError as error:
        raise UserError(f"The base is stored as {kind}: {error}") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"The base is stored as {kind}, which transformers cannot load: {error}") from error


def _trains_adapters(quantizer: HfQuantizer, kind: str) -> bool:
    try:
        return bool(quantizer.is_trainable)
    except ImportError as error:  # some look up the version of a package that is not there
        raise UserError(f"The base is stored as {kind}, which needs a package that is missing: {error}") from error


def _what_happens(kind: str, method: str) -> str:
    if method in WHOLE_METHODS:
        return f"The base is stored as {kind}: its master weights are trained, quantised in each forward pass."
    if "bitsandbytes" in kind:
        return f"The base is stored as {kind} and used as it is: method {method} on it is QLoRA."
    return f"The base is stored as {kind} and used as it is; what is trained on it cannot be merged into it exactly."


def _cure(stored: dict[str, Any], whole: bool, can_undo: bool) -> str:
    if stored.get("quant_method") == "bitnet":
        return "give the model's master weights (linear_class: autobitlinear, quantization_mode: online), method: full"
    if whole or can_undo:
        return "use method: lora, or give the 16-bit model"
    return "give the 16-bit model"
