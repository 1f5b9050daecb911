"""Proof of what lies beside the weights: tokenizer and template as trained, and every end token named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.files import read_json
from hf_recipes.export.bases.read import config_parts
from hf_recipes.export.companions import (
    TOKENIZER_FILES,
    config_end_tokens,
    read_tokenizer,
    token_id,
    token_ids,
    tokenizer_source,
)

_SPECIAL = ("bos_token", "eos_token", "pad_token")


def prove_companions(output: Path, adapter: Path, base: Path, end_tokens: Sequence[int] = ()) -> dict[str, Any]:
    """Check the files beside the weights; neither tokenizers nor transformers is imported.

    Args:
        output, adapter, base: directories.
        end_tokens: the ids that end a turn in training (``end_of_turn_token_ids`` of run.json).

    Returns:
        ``files`` that are the trained tokenizer's to the byte, ``end_token_ids`` of generation_config.json,
        ``tokens`` the tokenizer knows (None when it has no tokenizer.json), ``rows`` of the embeddings by the config,
        and ``notices``.

    Raises:
        CheckFailed: a file of the tokenizer is missing or differs, an end token is not named, or a token that every
            prompt or answer holds has no row.
    """
    source = tokenizer_source(adapter, base)
    files = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    config, generation = read_json(output / "config.json"), _read(output / "generation_config.json")
    ends = token_ids(generation.get("eos_token_id")) if generation else config_end_tokens(config)
    needed = {
        id for each in (adapter, base) for id in token_ids(_read(each / "generation_config.json").get("eos_token_id"))
    }
    special = {name: id for name in _SPECIAL if (id := token_id(output, name)) is not None}
    rows = next((part["vocab_size"] for part in config_parts(config) if "vocab_size" in part), None)
    found = [
        *_changed_files(source, output, files),
        *_missing_ends(ends, needed | set(end_tokens), special.get("eos_token")),
        *_without_row(special, rows),
    ]
    if found:
        raise CheckFailed(f"what lies beside the weights is not as trained: {'; '.join(found)}; no output was left")
    tokens = _tokens(output / "tokenizer.json")
    return {
        "files": files,
        "end_token_ids": ends,
        "tokens": tokens,
        "rows": rows,
        "notices": [
            *_other_special(special, config, generation),
            *_too_many(tokens, rows),
            *_without_row({f"end token {id}": id for id in ends if id not in special.values()}, rows),
        ],
    }


def lines(proof: Mapping[str, Any]) -> list[str]:
    """The proof in a line."""
    ends = ", ".join(map(str, proof["end_token_ids"])) or "none"
    if not proof["files"]:
        return [f"beside the weights: no tokenizer; end tokens {ends}"]
    known = f", {proof['tokens']} tokens in {proof['rows']} rows" if proof["tokens"] and proof["rows"] else ""
    return [
        f"beside the weights: {len(proof['files'])} files of the tokenizer as trained, to the byte{known}; end tokens "
        f"{ends}"
    ]


def _read(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _changed_files(source: Path, output: Path, files: Sequence[str]) -> Iterator[str]:
    for name in files:
        if not (output / name).is_file():
            yield f"{name} is missing"
        elif (output / name).read_bytes() != (source / name).read_bytes():
            yield f"{name} differs from {source / name}"


def _missing_ends(ends: Sequence[int], needed: set[int], eos: int | None) -> Iterator[str]:
    missing = sorted((needed | ({eos} if eos is not None else set())) - set(ends))
    if missing and (ends or needed):  # without any, the tokenizer's own is what generation stops at
        yield f"generation_config.json does not name every end token ({', '.join(map(str, missing))} missing)"


def _without_row(ids: Mapping[str, int], rows: int | None) -> Iterator[str]:
    for name, id in ids.items():
        if rows is not None and id >= rows:
            yield f"{name} has id {id}, but the embeddings have {rows} rows"


def _other_special(special: Mapping[str, int], config: Mapping[str, Any], generation: Mapping[str, Any]) -> list[str]:
    """Pad and begin tokens on which tokenizer and configs do not agree; many a base comes so."""
    notices = []
    for name in ("bos_token", "pad_token"):
        for file, settings in (("config.json", config), ("generation_config.json", generation)):
            said = settings.get(f"{name}_id")
            if isinstance(said, int) and name in special and said != special[name]:
                notices.append(f"{name}_id is {said} in {file}, but {special[name]} in the tokenizer.")
    return notices


def _tokens(file: Path) -> int | None:
    """The highest token id plus one, or None when the file cannot say."""
    try:
        content = read_tokenizer(file)
        vocabulary = content["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        return max([*ids, *(entry["id"] for entry in content.get("added_tokens", []))]) + 1
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _too_many(tokens: int | None, rows: int | None) -> list[str]:
    """Some bases come with tokens that have no row and that no text is encoded to (Gemma 3's image token)."""
    if tokens is None or rows is None or tokens <= rows:
        return []
    return [f"The tokenizer knows {tokens} tokens, the embeddings {rows}: a text with one of the last makes an error."]
