"""All rules about one row, applied to samples in the common form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from hf_recipes.data.clean.config import CleanConfig
from hf_recipes.data.clean.control import cleaned_of_controls, strip_control_characters
from hf_recipes.data.clean.emptiness import is_empty, is_special_tokens_only
from hf_recipes.data.clean.html import is_about_markup, strip_html
from hf_recipes.data.clean.language import UNDECIDED, check_languages, detect_language
from hf_recipes.data.clean.optional import check_installed
from hf_recipes.data.clean.personal import Finding, find_personal_data
from hf_recipes.data.clean.unicode_text import mend_unicode
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.formats import Example
from hf_recipes.data.reading.turns import Message

_SPOKEN = ("content", "reasoning_content")
_AROUND = 24  # characters shown before and after a change


@dataclass(frozen=True)
class Cleaned:
    """A sample after cleaning.

    Attributes:
        example: the sample; the very one that was given when nothing changed.
        changes: rule → what it changed first, as "before → after".
        notes: what was seen and left as it is: ``personal_data: KIND`` → masked finds, ``language: CODE`` → "",
            ``html: left alone`` → why.
    """

    example: Example
    changes: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


class Cleaner:
    """Applies the rules of a `CleanConfig` to one sample at a time. Holds no state, and can be sent to a process.

    Args:
        config: which rules are on.
        special_tokens: the tokenizer's (``tokenizer.all_special_tokens``), for `special_tokens_only`.

    Raises:
        UserError: a library that a rule needs is not installed, or a language is not known.
    """

    def __init__(self, config: CleanConfig, special_tokens: Iterable[str] = ()) -> None:
        self.config = config
        self.special_tokens = tuple(special_tokens)
        for is_on, name, rule in (
            (config.html, "selectolax", "html"),
            (config.unicode, "ftfy", "unicode"),
            (config.language, "py3langid", "language"),
        ):
            if is_on:
                check_installed(name, f"clean.{rule}")
        if config.language:
            check_languages(config.language)

    def clean(self, example: Example) -> Cleaned:
        """Apply the rules to what is said; function calls, tool schemas and roles are never touched.

        Raises:
            BadRow: the row is to be dropped; its reason begins with what was found.
        """
        cleaned = Cleaned(example)
        cleaned = self._rewritten(cleaned)
        self._check(cleaned.example)
        self._look(cleaned)
        return cleaned

    def _rewritten(self, cleaned: Cleaned) -> Cleaned:
        example = cleaned.example
        rules = self._text_rules(example, cleaned.notes)
        if not rules:
            return cleaned
        if example.text is not None:
            text = _apply(rules, example.text, cleaned.changes)
            return cleaned if text == example.text else replace(cleaned, example=replace(example, text=text))
        messages = [_clean_message(rules, message, cleaned.changes) for message in example.messages]
        return replace(cleaned, example=replace(example, messages=messages)) if cleaned.changes else cleaned

    def _text_rules(self, example: Example, notes: dict[str, str]) -> dict[str, Callable[[str], str]]:
        rules: dict[str, Callable[[str], str]] = {}
        if self.config.html and _may_hold_html(example):
            if example.text is None and any(is_about_markup(message["content"]) for message in example.messages):
                if any(strip_html(text) != text for text in _all_texts(example)):
                    notes["html: left alone"] = "the conversation is about markup"
            else:
                rules["html"] = strip_html
        if self.config.unicode:
            rules["unicode"] = mend_unicode
        if self.config.control_characters:
            rules["control_characters"] = strip_control_characters
        return rules

    def _check(self, example: Example) -> None:
        config = self.config
        what = "the text" if example.text is not None else "an answer"
        for text, is_learned in _answers(example):
            if config.special_tokens_only and is_learned and is_special_tokens_only(text, self.special_tokens):
                raise BadRow(f"{what} holds special tokens alone", _shortened(text))
            # What other rules have emptied goes in any case: no template can mark an answer that is not there.
            if not text.strip() or (config.empty and is_learned and is_empty(text)):
                raise BadRow(f"{what} is empty", _shortened(text))
        if config.max_chars is not None and (size := _characters(example)) > config.max_chars:
            raise BadRow(f"longer than {config.max_chars} characters", f"{size} characters")

    def _look(self, cleaned: Cleaned) -> None:
        config = self.config
        if config.language:
            code = detect_language(_spoken_text(cleaned.example))
            if code not in (*config.language, UNDECIDED):
                raise BadRow(f"language is not {' or '.join(config.language)}", code)
            cleaned.notes[f"language: {code}"] = ""
        if config.personal_data != "off":
            found = [finding for text in _all_texts(cleaned.example) for finding in find_personal_data(text)]
            if found and config.personal_data == "drop":
                raise BadRow("holds personal data", _told(found))
            for kind in dict.fromkeys(finding.kind for finding in found):
                cleaned.notes[f"personal_data: {kind}"] = _told([each for each in found if each.kind == kind])


def _clean_message(rules: dict[str, Callable[[str], str]], message: Message, changes: dict[str, str]) -> Message:
    changed = {}
    for key in _SPOKEN:
        before = message.get(key)
        if isinstance(before, str) and (after := _apply(rules, before, changes)) != before:
            changed[key] = after
    return {**message, **changed} if changed else message


def _apply(rules: dict[str, Callable[[str], str]], text: str, changes: dict[str, str]) -> str:
    for name, rule in rules.items():
        after = rule(text)
        if after != text:
            if name not in changes:
                changes[name] = _told_controls(text) if name == "control_characters" else difference(text, after)
            text = after
    return text


def _told_controls(text: str) -> str:
    return ", ".join(f"{count} × {name}" for name, count in cleaned_of_controls(text)[1].most_common(5))


def difference(before: str, after: str) -> str:
    """The first place where two texts differ, as ``'before' → 'after'``."""
    start = next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    start = max(0, start - _AROUND // 3)
    return f"{before[start : start + _AROUND]!r} → {after[start : start + _AROUND]!r}"


def _may_hold_html(example: Example) -> bool:
    return any("<" in text or "&" in text for text in _all_texts(example))


def _all_texts(example: Example) -> list[str]:
    if example.text is not None:
        return [example.text]
    return [message[key] for message in example.messages for key in _SPOKEN if isinstance(message.get(key), str)]


def _answers(example: Example) -> list[tuple[str, bool]]:
    """The text, or the answers that are not function calls alone, each with whether it is learned."""
    if example.text is not None:
        return [(example.text, True)]
    return [
        (message["content"], is_learned)
        for message, is_learned in zip(example.messages, example.trained, strict=True)
        if message["role"] == "assistant" and (message["content"].strip() or not message.get("tool_calls"))
    ]


def _spoken_text(example: Example) -> str:
    """What a person and the assistant say, the answers first: in a translation task they are what is learned."""
    if example.text is not None:
        return example.text
    by_role = {role: [m["content"] for m in example.messages if m["role"] == role] for role in ("assistant", "user")}
    return "\n".join(by_role["assistant"] + by_role["user"])


def _characters(example: Example) -> int:
    return sum(map(len, _all_texts(example)))


def _told(found: list[Finding]) -> str:
    return ", ".join(f"{finding.kind} {finding.masked}" for finding in found[:3])


def _shortened(text: str) -> str:
    return repr(text[:40])
