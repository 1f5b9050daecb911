"""Model and tokenizer in one call, ready for any Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.models.base import check_vocabulary, load_base
from hf_recipes.models.lora import DEFAULT_TARGETS, LoraSettings, attach_lora
from hf_recipes.models.precision import choose_precision, detect_hardware
from hf_recipes.models.qlora import freeze_quantized, nf4_config
from hf_recipes.models.source import find_model
from hf_recipes.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def build_model(
    name_or_path: str, *, dtype: str = "auto", revision: str | None = None, **arguments: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer for full fine-tuning.

    Args:
        name_or_path: Directory, ``.gguf`` file or Hub name.
        dtype: ``bf16``, ``fp16``, ``fp32`` in any spelling; ``auto`` is fp32, the master weights of a full fine-tune.
        revision: Hub revision.
        arguments: Passed to ``from_pretrained`` (``attn_implementation``, ``trust_remote_code`` …).

    Raises:
        UserError: the model cannot be found or loaded, or tokenizer and embedding do not fit.
    """
    return _load(name_or_path, _dtype("full", dtype), revision, arguments)


def build_lora_model(
    name_or_path: str,
    *,
    r: int = 16,
    alpha: float = 32,
    dropout: float = 0.05,
    target_modules: str | Sequence[str] = DEFAULT_TARGETS,
    modules_to_save: Sequence[str] | None = None,
    use_rslora: bool = False,
    use_dora: bool = False,
    dtype: str = "auto",
    revision: str | None = None,
    **arguments: Any,
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load a frozen base with a LoRA (or DoRA) adapter, and its tokenizer.

    Args:
        name_or_path: Directory, ``.gguf`` file or Hub name.
        r: Rank of the update.
        alpha: Scale; the update is ``alpha / r · B·A`` (``alpha / √r`` with `use_rslora`).
        dropout: Dropout on the adapter's input.
        target_modules: Module names, or ``all-linear``.
        modules_to_save: Modules trained in full beside the adapter.
        use_rslora: Rank-stabilised scale (Kalajdzievski 2023).
        use_dora: Weight-decomposed LoRA (Liu et al. 2024).
        dtype: Dtype of the base; ``auto`` is bf16 where the hardware computes it, else fp32.
        revision: Hub revision.
        arguments: Passed to ``from_pretrained``.

    Raises:
        UserError: the model cannot be found or loaded, or a target matches no module.
    """
    settings = LoraSettings(
        r, alpha, dropout, target_modules, None, modules_to_save, use_rslora=use_rslora, use_dora=use_dora
    )
    model, tokenizer = _load(name_or_path, _dtype("lora", dtype), revision, arguments)
    return attach_lora(model, settings), tokenizer


def build_qlora_model(
    name_or_path: str,
    *,
    r: int = 16,
    alpha: float = 32,
    dropout: float = 0.05,
    target_modules: str | Sequence[str] = DEFAULT_TARGETS,
    modules_to_save: Sequence[str] | None = None,
    use_rslora: bool = False,
    use_dora: bool = False,
    compute_dtype: str = "bf16",
    quant_storage: str | None = None,
    revision: str | None = None,
    **arguments: Any,
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load an NF4 base with double quantisation and a LoRA adapter on it, and the tokenizer; on a CPU too.

    Args:
        name_or_path: Directory or Hub name of a 16-bit or 32-bit model; it is quantised while loading.
        r, alpha, dropout, target_modules, modules_to_save, use_rslora, use_dora, revision, arguments: As in
            `build_lora_model`.
        compute_dtype: What 4-bit weights are dequantised to for each product, in any spelling.
        quant_storage: Dtype the packed weights are stored as; under FSDP give it the compute dtype.

    Raises:
        UserError: the model cannot be found or loaded, bitsandbytes is missing, or a target matches no module.
    """
    settings = LoraSettings(
        r, alpha, dropout, target_modules, None, modules_to_save, use_rslora=use_rslora, use_dora=use_dora
    )
    compute = canonical_dtype_name(compute_dtype, "compute_dtype")
    storage = canonical_dtype_name(quant_storage, "quant_storage") if quant_storage else None
    arguments["quantization"] = nf4_config(compute, storage)
    model, tokenizer = _load(name_or_path, compute, revision, arguments)
    return attach_lora(freeze_quantized(model), settings), tokenizer


def _dtype(method: str, dtype: str) -> str:
    return choose_precision(method, detect_hardware(), dtype=canonical_dtype_name(dtype)).dtype


def _load(
    name_or_path: str, dtype: str, revision: str | None, arguments: dict[str, Any]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    source = find_model(name_or_path, revision)
    tokenizer = load_tokenizer(
        name_or_path, revision=revision, trust_remote_code=arguments.get("trust_remote_code", False)
    )
    model = load_base(source, dtype=dtype, **arguments)
    check_vocabulary(model, tokenizer)
    return model, tokenizer
