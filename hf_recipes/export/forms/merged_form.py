"""One plain model directory in one dtype: an adapter merged into its base, or a fully trained model cast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.tensors import FLOATS, iter_entries
from hf_recipes.export.companions import copy_files
from hf_recipes.export.forms.companion_files import COMPANIONS
from hf_recipes.export.forms.modelfile import write_modelfile
from hf_recipes.export.staging import staged

_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def write_merged_form(result: Path, output: Path, dtype: str, **merge_options: Any) -> dict[str, Any] | None:
    """Write `result`, an adapter or a model, as a model directory in `dtype` (``bf16``, ``fp16``, ``fp32``).

    Args:
        merge_options: passed to `export.merge.merge_adapter` (``base``, ``allow_other_base`` …).

    Returns:
        The merge's report as plain data; None for a model, which has nothing to merge.

    Raises:
        UserError, CheckFailed: see `export.merge.merge_adapter`; a model's values do not fit into `dtype`.
    """
    if (result / "adapter_config.json").is_file():
        from hf_recipes.export.merge import merge_adapter

        return merge_adapter(result, output=output, dtype=dtype, overwrite=True, **merge_options).to_dict()
    _cast(result, output, _TORCH_NAMES[dtype])
    return None


def write_ollama_file(directory: Path) -> list[str]:
    """Put a Modelfile into a merged directory; returns notices. Ollama runs safetensors of few kinds, by MLX."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError):
        return [f"{directory} holds no tokenizer: no Modelfile was written."]
    config = read_json(directory / "config.json")
    config = config.get("text_config") or config
    first = list(tokenizer("x")["input_ids"])[:1]
    return write_modelfile(
        directory,
        ".",
        tokenizer,
        adds_bos=tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id],
        generation=generation_config(directory),
        context=config.get("max_position_embeddings"),
    )


def generation_config(directory: Path) -> dict[str, Any]:
    """``generation_config.json`` of a directory; empty where there is none."""
    file = directory / "generation_config.json"
    return dict(read_json(file)) if file.is_file() else {}


def _cast(model_directory: Path, output: Path, dtype: str) -> None:
    from transformers import AutoModelForCausalLM

    if dtype == "float16":
        _refuse_overflow(model_directory)
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=dtype, trust_remote_code=False)
    with staged(output) as staging:
        model.save_pretrained(staging)
        copy_files(model_directory, staging, COMPANIONS)


def _refuse_overflow(directory: Path) -> None:
    """Raise `UserError` naming the first tensor whose values fp16, which ends at 65,504, turns into Inf."""
    import torch

    from hf_recipes.export.soundness import is_finite

    for entry in iter_entries(directory):
        if entry.dtype in FLOATS and not is_finite((stored := entry.load()).to(torch.float16)):
            why = "its values do not fit into float16; choose bf16 or fp32"
            why = why if is_finite(stored) else "it holds NaN or Inf; export an earlier checkpoint"
            raise UserError(f"'{entry.name}' cannot be written: {why}.")
