"""The files beside the weights: config, generation config, and the tokenizer and template of the training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json, write_json
from hf_recipes.core.log import logger
from hf_recipes.export.bases.read import BaseModel, config_parts

_TOKENIZER = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
]
_TOKENIZER_FOLDER = "additional_chat_templates"
_PROCESSOR = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_MARKS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


def merged_config(base: BaseModel, dtype: str, vocab_size: int | None, untied: bool) -> dict[str, Any]:
    """The base's config.json with what the merge changes: dtype, and where it applies vocabulary size and tying.

    Args:
        base: its config is not changed.
        dtype: torch's name (``bfloat16``); written under the key the base uses (``dtype``, formerly ``torch_dtype``).
        vocab_size: the new number of words, or None.
        untied: embeddings and head now differ.
    """
    config = json.loads(json.dumps(base.config))
    config.pop("quantization_config", None)
    for part in config_parts(config):
        for key in {"dtype", "torch_dtype"} & set(part):
            part[key] = dtype
        if vocab_size is not None and "vocab_size" in part:
            part["vocab_size"] = vocab_size
        if untied and "tie_word_embeddings" in part:
            part["tie_word_embeddings"] = False
    if not {"dtype", "torch_dtype"} & set(config):
        config["dtype"] = dtype
    if untied:
        config["tie_word_embeddings"] = False
    return config


def write_companions(output: Path, adapter: Path, base: Path, config: dict[str, Any]) -> list[str]:
    """Write everything but the weights into `output`; returns notices worth telling.

    Tokenizer and template are those in the adapter's directory, as trained, and only if there is none the base's.
    The generation config likewise; the trained tokenizer's end token is added to its end tokens if it is not there.
    Python files of a model with its own code, and a processor's settings, come from the base.
    """
    notices = []
    write_json(output / "config.json", config)
    source = adapter
    if not any((adapter / mark).is_file() for mark in _MARKS):
        source = base
        notices.append(f"{adapter} holds no tokenizer: the base's was copied.")
    _copy(source, output, [*_TOKENIZER, _TOKENIZER_FOLDER])
    _copy(base, output, [*_PROCESSOR, *(file.name for file in base.glob("*.py"))])
    _copy(adapter, output, _PROCESSOR)
    notices += _write_generation_config(output, adapter, base)
    return notices


def check_tokenizer(adapter: Path, base: Path) -> None:
    """Raise `UserError` when neither directory holds a tokenizer, without which no prompt can be given to the model."""
    if not any((directory / mark).is_file() for directory in (adapter, base) for mark in _MARKS):
        raise UserError(f"Neither '{adapter}' nor '{base}' holds a tokenizer, which the proof by logits needs.")


def _copy(source: Path, output: Path, names: list[str] | tuple[str, ...]) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, output / name)
        elif (source / name).is_dir():
            shutil.copytree(source / name, output / name, dirs_exist_ok=True)


def _write_generation_config(output: Path, adapter: Path, base: Path) -> list[str]:
    file = next(
        (d / "generation_config.json" for d in (adapter, base) if (d / "generation_config.json").is_file()), None
    )
    if file is None:
        return []
    try:
        settings = read_json(file)
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON ({error}): restore it.") from None
    known = settings.get("eos_token_id")
    ends = [known] if isinstance(known, int) else list(known or [])
    trained = token_id(output, "eos_token")
    notices = []
    if trained is not None and trained not in ends:
        settings["eos_token_id"] = [*ends, trained]
        notices.append(f"The end token of the trained tokenizer ({trained}) was added to generation_config.json.")
    write_json(output / "generation_config.json", settings)
    return notices


def token_id(directory: Path, key: str) -> int | None:
    """The id of a tokenizer's special token (``eos_token``, ``pad_token``), or None where its files do not say."""
    try:
        token = read_json(directory / "tokenizer_config.json").get(key)
        added = read_json(directory / "tokenizer.json").get("added_tokens", [])
    except (OSError, ValueError):
        return None
    text = token.get("content") if isinstance(token, dict) else token
    return next((entry["id"] for entry in added if entry.get("content") == text), None)


def tell(notices: list[str]) -> None:
    """Log each notice."""
    for notice in notices:
        logger.info(notice)
