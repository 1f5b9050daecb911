"""QLoRA (Dettmers et al. 2023): a frozen base in NF4 with double quantisation, LoRA on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig, PreTrainedModel


def nf4_config(compute_dtype: str, quant_storage: str | None = None, quant_type: str = "nf4") -> BitsAndBytesConfig:
    """The quantisation of QLoRA: 4-bit NormalFloat, double quantisation.

    Args:
        compute_dtype: What weights are dequantised to for each product (``bfloat16``, ``float16``, ``float32``).
        quant_storage: Dtype the packed bytes are stored as; FSDP needs it equal to `compute_dtype` (one dtype a unit).
        quant_type: ``nf4`` or ``fp4``.

    Raises:
        UserError: bitsandbytes is not installed, with the command to install it.
    """
    import importlib.util

    import torch
    from transformers import BitsAndBytesConfig

    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError("QLoRA needs bitsandbytes, which is not installed: run `pip install bitsandbytes`.")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quant_type,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, compute_dtype),
        bnb_4bit_quant_storage=getattr(torch, quant_storage) if quant_storage else None,
    )


def freeze_quantized(model: PreTrainedModel) -> PreTrainedModel:
    """Freeze a quantised base for adapter training.

    `peft.prepare_model_for_kbit_training` would also cast every 16-bit parameter to fp32, embeddings and head included
    (2 GB at a vocabulary of 128k and 8B); norms compute in fp32 inside transformers anyway, so nothing is cast here.
    """
    model.requires_grad_(False)
    return model
