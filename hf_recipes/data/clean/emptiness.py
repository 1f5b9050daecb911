"""Texts with nothing to learn in them: no word, number or symbol, or special tokens alone. Needs no library."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]")
# As tokenizers write them: <|im_end|>, <｜end▁of▁sentence｜>, </s>, <pad>, <start_of_turn>, [INST], [PAD], <<SYS>>.
_SPECIAL = re.compile(
    r"<\|[^<>|\s]{1,64}\|>|<｜[^<>｜\s]{1,64}｜>|<</?SYS>>"
    r"|</?(?:s|bos|eos|pad|unk|mask|sep|cls|start_of_turn|end_of_turn|extra_id_\d+|unused\d+)>"
    r"|\[/?(?:INST|PAD|CLS|SEP|MASK|UNK|BOS|EOS|gMASK|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]",
    re.IGNORECASE,
)


def is_empty(text: str) -> bool:
    """Whether a text holds no letter, digit or symbol: white space, punctuation and invisible characters alone.

    ``+``, ``=``, ``👍`` are symbols and so something; ``...``, ``-`` and ``。`` are nothing.
    """
    if _WORD.search(text):
        return False
    return all(unicodedata.category(character)[0] in "ZPC" for character in text)


def is_special_tokens_only(text: str, special_tokens: Iterable[str] = ()) -> bool:
    """Whether a text holds special tokens and, but for white space, nothing else.

    Args:
        text: a text.
        special_tokens: those of the tokenizer (``tokenizer.all_special_tokens``), besides the forms in common use.
    """
    special_tokens = tuple(special_tokens)
    rest = text.strip()
    if not rest or (rest[0] not in "<[" and not any(rest.startswith(token) for token in special_tokens)):
        return False
    for token in sorted(filter(None, special_tokens), key=len, reverse=True):
        rest = rest.replace(token, " ")
    return not _SPECIAL.sub(" ", rest).strip()
