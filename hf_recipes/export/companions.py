"""The files beside the weights: config, generation config, and the tokenizer and template of the training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json, write_json
from hf_recipes.core.links import why_leads_out
from hf_recipes.core.log import logger
from hf_recipes.export.bases.read import BaseModel, config_parts
from hf_recipes.export.config_types import check_generation_config

# Files, and the one folder, of a tokenizer with its chat templates.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates"),
)
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


def write_companions(
    output: Path, adapter: Path, base: Path, config: dict[str, Any], end_tokens: Sequence[int] = ()
) -> list[str]:
    """Write everything but the weights into `output`; returns notices worth telling.

    Tokenizer and template are those in the adapter's directory, as trained, and only if there is none the base's.
    The generation config likewise; its end tokens are all that adapter, base, the trained tokenizer and `end_tokens`
    name, so that whatever serves the model stops. Python files of a model with its own code, and a processor's
    settings, come from the base.

    Args:
        output, adapter, base: directories.
        config: for config.json.
        end_tokens: the ids that end a turn in training (``end_of_turn_token_ids`` of run.json).
    """
    notices = []
    write_json(output / "config.json", config)
    source = tokenizer_source(adapter, base)
    if source == base:
        then = "the base's was copied" if has_tokenizer(base) else "nor does the base: the output has none"
        notices.append(f"{adapter} holds no tokenizer: {then}.")
    copy_files(source, output, TOKENIZER_FILES)
    copy_files(base, output, [*_PROCESSOR, *(file.name for file in base.glob("*.py"))])
    copy_files(adapter, output, _PROCESSOR)
    notices += _write_generation_config(output, adapter, base, end_tokens)
    return notices


def tokenizer_source(adapter: Path, base: Path) -> Path:
    """The directory whose tokenizer the merged model has: the adapter's, or the base's if there is none in it."""
    return adapter if has_tokenizer(adapter) else base


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a tokenizer of any kind."""
    return any((directory / mark).is_file() for mark in _MARKS)


def check_tokenizer(adapter: Path, base: Path) -> None:
    """Raise `UserError` when neither directory holds a tokenizer, without which no prompt can be given to the model."""
    if not has_tokenizer(adapter) and not has_tokenizer(base):
        raise UserError(f"Neither '{adapter}' nor '{base}' holds a tokenizer, which the proof by logits needs.")


def copy_files(source: Path, output: Path, names: Sequence[str]) -> None:
    """Copy those of `names`, files or folders, that `source` has; what is a link out of it is told."""
    root = source.resolve()
    for name in names:
        for path in (source / name, *(source / name).rglob("*")):
            if reason := why_leads_out(root, path):
                logger.warning("%s %s: what is there is copied.", path, reason)
        if (source / name).is_file():
            shutil.copyfile(source / name, output / name)
        elif (source / name).is_dir():
            shutil.copytree(source / name, output / name, dirs_exist_ok=True)


def _write_generation_config(output: Path, adapter: Path, base: Path, end_tokens: Sequence[int]) -> list[str]:
    found = [settings for directory in (adapter, base) if (settings := _generation_config(directory)) is not None]
    settings = dict(found[0]) if found else {}
    ends = [end for each in found for end in token_ids(each.get("eos_token_id"))]
    if not found:  # a file that names an end token takes the place of config.json's
        ends = config_end_tokens(read_json(output / "config.json"))
    notices = []
    trained = [token_id(output, "eos_token"), *end_tokens]
    if added := [end for end in dict.fromkeys(trained) if end is not None and end not in ends]:
        ids = ", ".join(map(str, added))
        notices.append(f"End tokens of the training ({ids}) were added to generation_config.json.")
    ends = list(dict.fromkeys([*ends, *added]))
    if not found and not added and not end_tokens:
        return []
    if ends and ends != token_ids(settings.get("eos_token_id")):
        settings["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    write_json(output / "generation_config.json", settings)
    return notices


def _generation_config(directory: Path) -> dict[str, Any] | None:
    file = directory / "generation_config.json"
    if not file.is_file():
        return None
    try:
        settings = read_json(file)
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON ({error}): restore it.") from None
    check_generation_config(settings, file)
    return settings


def token_ids(value: Any) -> list[int]:
    """The ids in a config's ``eos_token_id``: a number, a list of them, or nothing."""
    return [value] if isinstance(value, int) else list(value or [])


def config_end_tokens(config: dict[str, Any]) -> list[int]:
    """The end tokens in a config.json: what generation stops at where there is no generation_config.json."""
    ids = [end for part in config_parts(config) for end in token_ids(part.get("eos_token_id"))]
    return list(dict.fromkeys(ids))


def token_id(directory: Path, key: str) -> int | None:
    """The id of a tokenizer's special token (``eos_token``, ``pad_token``), or None where its files do not say."""
    try:
        token = read_json(directory / "tokenizer_config.json").get(key)
        added = read_tokenizer(directory / "tokenizer.json").get("added_tokens", [])
        text = token.get("content") if isinstance(token, dict) else token
        found = next((entry["id"] for entry in added if entry.get("content") == text), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return found if type(found) is int else None


def read_tokenizer(file: Path) -> Any:
    """The content of a tokenizer.json, of megabytes: parsed once, however often it is asked; not to be changed."""
    status = file.stat()
    return _parsed(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _parsed(file: Path, _changed_ns: int, _bytes: int) -> Any:
    return read_json(file)


def tell(notices: list[str]) -> None:
    """Log each notice."""
    for notice in notices:
        logger.info(notice)
