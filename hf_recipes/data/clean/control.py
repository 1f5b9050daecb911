"""Control characters and characters that cannot be seen. Needs no library."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

# Line breaks of other systems and of typesetting: CR LF, CR, vertical tab, form feed, NEL, LINE SEPARATOR, …
_LINE_BREAK = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
# ECMA-48 terminal sequences: colours and cursor movement (CSI), titles and links (OSC). The rest would stay as litter.
_TERMINAL = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)")
_ALWAYS = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"  # C0 and C1 but for tab and line breaks, DEL
    "\u00ad\u2060\ufeff"  # soft hyphen, word joiner, byte order mark
    "\u202d\u202e"  # bidi overrides: they show text in another order than it is read in
    "\ud800-\udfff"  # lone surrogates: not text, and no tokenizer takes them
    "\ufdd0-\ufdef\ufffe\uffff"  # noncharacters
)
_BIDI = "\u202a-\u202c\u2066-\u2069"  # embeddings and isolates: of use only among right-to-left letters
_JOINERS = "\u200b-\u200d"  # zero width space, non-joiner, joiner: spelling in many scripts, and part of emoji
_TAGS = "\U000e0000-\U000e007f"  # flags of England, Scotland, Wales; elsewhere text that hides
_SUSPECT = re.compile(f"[\r\x0b\x0c\x85\u2028\u2029{_ALWAYS}{_BIDI}{_JOINERS}{_TAGS}]")
_HIDDEN = re.compile(f"[{_ALWAYS}{_BIDI}{_JOINERS}]|[{_TAGS}]+")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdfc\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]")
_BLACK_FLAG = "\U0001f3f4"
_NAMES = {0x00: "NUL", 0x08: "BACKSPACE", 0x1B: "ESCAPE", 0x7F: "DELETE", 0xFEFF: "BYTE ORDER MARK"}


def strip_control_characters(text: str) -> str:
    """Remove characters that neither show nor separate, and turn every kind of line break into ``\\n``.

    Removed: C0 and C1 controls but tab and line feed, terminal sequences, byte order marks inside text, soft hyphens,
    word joiners, lone surrogates, noncharacters, bidi overrides, bidi embeddings where no letter runs right to left,
    hidden tag characters. Zero width joiners, non-joiners and spaces stay where a script or an emoji uses them
    (Persian, Indic scripts, Thai, Khmer), and go between Latin letters.
    """
    return cleaned_of_controls(text)[0]


def cleaned_of_controls(text: str) -> tuple[str, Counter[str]]:
    """As `strip_control_characters`, with the names of what was removed or replaced and how often."""
    found: Counter[str] = Counter()
    # Whatever is removed is not printable (isprintable is five times as fast as the search).
    if text.replace("\n", "").replace("\t", "").isprintable() or not _SUSPECT.search(text):
        return text, found
    text = _TERMINAL.sub(lambda match: _note(found, "terminal sequence", ""), text)
    text = _LINE_BREAK.sub(lambda match: _note(found, _break_name(match[0]), "\n"), text)
    has_right_to_left = _RIGHT_TO_LEFT.search(text) is not None

    def replace(match: re.Match[str]) -> str:
        run = match[0]
        if _is_wanted(run, text, match.start(), match.end(), has_right_to_left):
            return run
        return _note(found, character_name(run[0]), "")

    return _HIDDEN.sub(replace, text), found


def character_name(character: str) -> str:
    """The Unicode name of a character, or its usual abbreviation or code point where it has none."""
    code = ord(character)
    return _NAMES[code] if code in _NAMES else unicodedata.name(character, f"U+{code:04X}")


def _break_name(found: str) -> str:
    names = {"\r\n": "CR LF", "\r": "CR", "\x0b": "VERTICAL TAB", "\x0c": "FORM FEED", "\x85": "NEXT LINE"}
    return names.get(found) or character_name(found)


def _note(found: Counter[str], name: str, replacement: str) -> str:
    found[name] += 1
    return replacement


def _is_wanted(run: str, text: str, start: int, end: int, has_right_to_left: bool) -> bool:
    first = run[0]
    if "\u202a" <= first <= "\u202c" or "\u2066" <= first <= "\u2069":
        return has_right_to_left
    if "\u200b" <= first <= "\u200d":
        before = text[start - 1] if start else ""
        after = text[end] if end < len(text) else ""
        return _joins(before) and (first == "\u200c" or _joins(after))
    return first >= "\U000e0000" and text[start - 1 : start] == _BLACK_FLAG


def _joins(neighbour: str) -> bool:
    """Whether zero width characters mean something beside this one: letters from Arabic to Khmer, emoji."""
    if not neighbour:
        return False
    if "\u0590" <= neighbour < "\u1e00":
        return unicodedata.category(neighbour)[0] in "LMN"
    if (
        "\ua800" <= neighbour <= "\uabff"
        or "\ufb1d" <= neighbour <= "\ufefc"
        or "\U00011000" <= neighbour <= "\U00011fff"
    ):
        return unicodedata.category(neighbour)[0] in "LM"
    return neighbour in "\ufe0f\u20e3\u200d" or unicodedata.category(neighbour) in ("So", "Sk")
