"""What a reader of the rows would stumble over: answers that are none, and words that the chat template adds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hf_recipes.data.inspection.facts import FrequentAnswer
from hf_recipes.data.inspection.scan import ShortAnswer

# What people, spreadsheets and exports write where there is nothing to write.
_PLACEHOLDERS = (
    "n/a|na|#n/a|nan|nil|null|none|-|--|—|?|…|...|todo|tbd|tba|unknown|empty|blank|undefined|xxx|lorem ipsum|"
    "no answer|not available|not applicable"
)
PLACEHOLDERS = frozenset(_PLACEHOLDERS.split("|"))
_WORDS_OF_A_MESSAGE = 4  # fewer are names of roles
_MARK = "\u2042mark\u2042"


def placeholder_answers(short: Iterable[ShortAnswer], tokenizer: Any) -> list[FrequentAnswer]:
    """The answers, of those with a few tokens, that stand for "there is none", the most frequent first."""
    found = []
    for answer in short:
        text = tokenizer.decode(answer.token_ids, skip_special_tokens=True).strip()
        if text.strip("()[]<>.\"' ").casefold() in PLACEHOLDERS or text.casefold() in PLACEHOLDERS:
            found.append(FrequentAnswer(text, answer.count, answer.row_id))
    return sorted(found, key=lambda answer: -answer.count)


def template_preamble(tokenizer: Any) -> str:
    """What the chat template says by itself before a conversation that begins with a user's turn: a system message of
    the model's makers, or a date; empty where it says nothing of its own."""
    if not getattr(tokenizer, "chat_template", None):
        return ""
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
    except Exception:  # templates are programs of their own, and what refuses this is told where it matters
        return ""
    before = text.partition(_MARK)[0]
    for token in sorted(map(str, tokenizer.get_added_vocab()), key=len, reverse=True):
        before = before.replace(token, "\n")
    said = [line for line in before.splitlines() if len(line.split()) >= _WORDS_OF_A_MESSAGE]
    return " ".join(" ".join(said).split())
