"""How this stack reads the rows and loads the models of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_recipes.data.prepare import prepare_data
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.evaluation.likelihood import TokenisedRow
from hf_recipes.evaluation.prepared import Loaders, load_peft_adapter
from hf_recipes.models.base import load_base
from hf_recipes.models.methods.prefix import generate_with_prefix
from hf_recipes.models.source import find_model

MAX_GENERAL_TOKENS = 2048


def loaders() -> Loaders:
    """How this stack reads general rows and loads models."""
    return Loaders(tokenise_rows, load_model, load_adapter)


def tokenise_rows(source: SourceSpec, tokenizer: Any) -> list[TokenisedRow]:
    """Rows of any known format, masked as in training: answers with their end of turn. What is dropped is told."""
    rows = prepare_data([source], tokenizer, max_length=MAX_GENERAL_TOKENS, eval_share=0, general_share=0).train
    return [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in rows]


def load_adapter(model: Any, directory: Path) -> Any:
    """An adapter of any method that hf_recipes trains, ready to generate."""
    return generate_with_prefix(load_peft_adapter(model, directory))


def load_model(name_or_path: str, revision: str | None, dtype: str) -> Any:
    """A causal LM from a directory, a GGUF file or the Hub, found as for training."""
    return load_base(find_model(name_or_path, revision), dtype=dtype)
