"""The files beside weights that every form carries: tokenizer, chat template, generation config."""

from __future__ import annotations

from hf_recipes.export.companions import TOKENIZER_FILES

COMPANIONS = (*TOKENIZER_FILES, "generation_config.json")
