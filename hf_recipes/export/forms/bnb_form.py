"""4-bit and 8-bit directories that transformers loads by itself: bitsandbytes on the merged model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import write_json
from hf_recipes.export.companions import TOKENIZER_FILES, copy_files
from hf_recipes.export.staging import staged


def write_bnb_form(merged: Path, output: Path, bits: int) -> list[str]:
    """Quantise the merged model in `merged` and write it to `output`; returns notices worth telling.

    4 bits are NF4 with double quantisation, 8 bits LLM.int8(); embeddings, norms and head stay in 16 bits, and the
    compute dtype is that of the merged model.

    Raises:
        UserError: bitsandbytes is missing, or cannot work here.
    """
    model, dtype = _load_quantized(merged, bits)
    kept = _kept(model)
    with staged(output) as staging:
        model.save_pretrained(staging)
        del model
        copy_files(merged, staging, TOKENIZER_FILES)
        write_json(staging / "hf_recipes_quantization.json", {"bits": bits, "compute_dtype": dtype, "kept": kept})
    how = "NF4, double quantisation" if bits == 4 else "LLM.int8()"
    return [f"{how}; computes in {dtype}; {len(kept)} tensors stay in 16 bits (embeddings, norms, head)."]


def _load_quantized(merged: Path, bits: int) -> tuple[Any, str]:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    dtype = str(transformers.AutoConfig.from_pretrained(merged, trust_remote_code=False).dtype).removeprefix("torch.")
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=bits == 4,
        load_in_8bit=bits == 8,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            merged, dtype=dtype, quantization_config=config, trust_remote_code=False
        )
    except (ImportError, RuntimeError, NotImplementedError) as error:
        raise UserError(f"bitsandbytes cannot quantise here: {' '.join(str(error).split())[:200]}") from error
    return model, dtype


def _kept(model: Any) -> list[str]:
    return [name for name, value in model.named_parameters() if value.is_floating_point()]
