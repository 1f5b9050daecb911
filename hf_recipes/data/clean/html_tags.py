"""Which ``<…>`` and ``&…;`` of a text are HTML: known elements, well formed and in their place. Needs no library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.entities import html5

from hf_recipes.data.clean.html_elements import CHAT_TAGS, NEEDS_NO_END, OTHERS, TELLING, VOID

_ATTRIBUTES = r"""(?:\s++[A-Za-z_:@][\w:.@-]*+(?:\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+'|[^\s"'=<>`]++))?+)*+"""
_TAG = re.compile(
    rf"<(?P<end>/?)(?P<name>[A-Za-z][A-Za-z0-9_.:-]*+)(?P<attributes>{_ATTRIBUTES})\s*+/?>|<!--.*?-->|<!doctype\s[^<>]*>",
    re.IGNORECASE | re.DOTALL,
)
_MAYBE_TAG = re.compile(rf"</?(?:{'|'.join(sorted(TELLING))})[\s/>]|<!--", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});")
# Code that is not marked as such: PHP, templates, JSX, and lines that end as statements do.
_UNMARKED_CODE = re.compile(
    r"<\?|<%|\{\{|\{%|=>|=\{|className=|[\w)\]'\"]\(\)|^[^&\n]*(?:[\w)\]'\"];|[{}])[ \t]*$", re.MULTILINE
)
_SET_ASIDE = re.compile(r"<(script|style|pre|code|textarea)\b[^<>]*>.*?</\1\s*>", re.IGNORECASE | re.DOTALL)


def html_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of every tag and comment of `text` that is HTML; empty when the text is none.

    A text is HTML when it holds a whole telling element, such as ``<b>…</b>``, ``<br>`` or two ``<p>``, when its tags
    are not those of XML or JSX, and when it does not read as code. Of such a text, tags are those of known elements
    that are closed, need no end, or are telling ones; ``a <b``, ``List<int>`` and ``<think>`` stay text.
    """
    if not _MAYBE_TAG.search(text):
        return []
    tags = list(_TAG.finditer(text))
    paired = _paired(tags)
    if not _is_html(tags, paired, text):
        return []
    return [tag.span() for index, tag in enumerate(tags) if _is_tag(tag, index in paired, text)]


def _name(tag: re.Match[str]) -> str:
    return (tag["name"] or "").lower()


def _paired(tags: list[re.Match[str]]) -> set[int]:
    """Numbers of the start and end tags that belong together."""
    open_by_name: dict[str, list[int]] = {}
    paired: set[int] = set()
    for index, tag in enumerate(tags):
        name = _name(tag)
        if not tag["end"]:
            open_by_name.setdefault(name, []).append(index)
        elif open_by_name.get(name):
            paired |= {open_by_name[name].pop(), index}
    return paired


def _is_html(tags: list[re.Match[str]], paired: set[int], text: str) -> bool:
    whole = [tag for index, tag in enumerate(tags) if index in paired]
    if any(_name(tag) not in TELLING | OTHERS | CHAT_TAGS for tag in whole):
        return False  # XML, JSX, or a prompt with tags of its own
    unended = sum(_name(tag) in ("p", "li") and not tag["end"] for tag in tags)
    if not (any(_tells(tag) for tag in whole) or any(_is_telling_void(tag) for tag in tags) or unended > 1):
        return False
    return not _UNMARKED_CODE.search(_SET_ASIDE.sub("", text) if "</" in text else text)


def _tells(tag: re.Match[str]) -> bool:
    return _name(tag) in TELLING and (_name(tag) != "a" or "=" in (tag["attributes"] or "") or bool(tag["end"]))


def _is_telling_void(tag: re.Match[str]) -> bool:
    return _name(tag) in ("br", "hr") or (_name(tag) == "img" and "src" in tag["attributes"].lower())


def _is_tag(tag: re.Match[str], is_paired: bool, text: str) -> bool:
    name = _name(tag)
    if not name:
        return True  # a comment or a doctype
    if name not in TELLING | OTHERS:
        return False
    if is_paired or name in ("br", "hr", "wbr"):
        return True
    if name in VOID:
        return "=" in tag["attributes"]
    if name in NEEDS_NO_END or tag["end"]:
        return True
    after_word = tag.start() > 0 and (text[tag.start() - 1].isalnum() or text[tag.start() - 1] == "_")
    return name in TELLING and not after_word


def entities(text: str) -> Iterator[re.Match[str]]:
    """Character references that are whole: ``&name;`` of a known name, ``&#8217;``, ``&#x2019;``."""
    return (match for match in _ENTITY.finditer(text) if match[0][1] == "#" or match[0][1:] in html5)
