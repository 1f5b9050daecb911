"""The files beside weights that every form carries: tokenizer, chat template, generation config."""

from __future__ import annotations

import shutil
from pathlib import Path

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates"),
)
COMPANIONS = (*TOKENIZER_FILES, "generation_config.json")


def copy_files(source: Path, output: Path, names: tuple[str, ...] = COMPANIONS) -> None:
    """Copy those of `names`, files or folders, that `source` has."""
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, output / name, dirs_exist_ok=True)
        elif (source / name).is_file():
            shutil.copyfile(source / name, output / name)
