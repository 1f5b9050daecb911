"""Whether every token of a tokenizer has a row in the embedding: one without stops the first batch that holds it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hf_recipes.checkpoints.verification.findings import Findings
from hf_recipes.checkpoints.verification.scan_facts import FileScan, TensorFacts

TOKENIZER_FILES = ("tokenizer.json", "added_tokens.json", "tokenizer_config.json")
# The names under which models keep their input embeddings, and PEFT a trained copy of them.
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|shared|embeddings)"
    r"(\.base_layer|\.modules_to_save(\.\w+)?)?\.weight$"
)
_NOT_OF_TEXT = re.compile(r"(^|\.)(vision|visual|audio|image|speech|codec)\w*\.")
_PACKED = ("U8", "I8", "I32")


def largest_token_id(name: str, content: Any) -> int | None:
    """The largest id in one of `TOKENIZER_FILES`, None where it lists none in a form known here."""
    if not isinstance(content, dict):
        return None
    if name == "added_tokens.json":
        return _largest(content.values())
    if name == "tokenizer_config.json":
        added = content.get("added_tokens_decoder")
        return _largest(int(key) for key in added if str(key).isdecimal()) if isinstance(added, dict) else None
    model, added = content.get("model"), content.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    if isinstance(vocabulary, dict):  # BPE, WordPiece, WordLevel: token → id
        ids.append(_largest(vocabulary.values()))
    elif isinstance(vocabulary, list):  # Unigram: the place is the id
        ids.append(len(vocabulary) - 1)
    return _largest(ids)


def _largest(ids: Iterable[Any]) -> int | None:
    return max((number for number in ids if type(number) is int), default=None)


def embedding_rows(tensors: Mapping[str, TensorFacts]) -> int | None:
    """The rows of the input embedding, None where there is none or it cannot be told from others."""
    rows = {
        facts.shape[0]
        for name, facts in tensors.items()
        if _EMBEDDING.search(name)
        and not _NOT_OF_TEXT.search(name)
        and len(facts.shape) == 2
        and facts.dtype not in _PACKED
        and facts.shape[0]
    }
    return max(rows) if rows else None


def check_tokenizer(prefix: str, inside: Mapping[str, FileScan], rows: int | None, findings: Findings) -> None:
    """Add a problem for each tokenizer file of a folder with ids that the embedding of `rows` rows lacks.

    A single id beyond the last is noted only: Gemma 3's text models come with one, for images that they cannot take.
    """
    for name in TOKENIZER_FILES:
        largest = inside[name].content if name in inside else None
        if rows is None or not isinstance(largest, int) or largest < rows:
            continue
        what = f"has token ids up to {largest}, but the embedding has {rows} rows (ids to {rows - 1})"
        if largest == rows:
            findings.note(f"{prefix}{name} {what}: a text that holds this token stops the model.")
        else:
            findings.problem(f"{prefix}{name}", what)
