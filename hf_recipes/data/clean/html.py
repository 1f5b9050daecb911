"""HTML that was left in text. The parser is lexbor, by way of selectolax."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape

from hf_recipes.data.clean.html_render import render
from hf_recipes.data.clean.html_tags import entities, html_spans
from hf_recipes.data.clean.markdown_code import hide_code
from hf_recipes.data.clean.optional import load

# References that are taken for leftovers of HTML even where no tag is: what no other writing has. &reg; or &num; are
# not among them, being C too.
_PLAIN = "nbsp|amp|quot|apos|lt|gt|ldquo|rdquo|lsquo|rsquo|laquo|raquo|ndash|mdash|hellip|bull|middot|zwnj|zwj|shy"
_PLAIN_ENTITY = re.compile(rf"&(?:{_PLAIN}|#\d{{2,6}}|#[xX][\da-fA-F]{{2,5}});")
_ESCAPED_TWICE = re.compile(
    r"&amp;(?=(?:amp;)*(?:amp|nbsp|quot|apos|[lr][sd]quo|[nm]dash|hellip|#\d{2,6}|#x[\da-f]{2,5});)"
)
_NO_BREAK_SPACE = re.compile("&(?:nbsp|#160|#[xX][aA]0);")
# Who speaks of markup wants to see it.
_ABOUT_MARKUP = re.compile(
    r"\b(?:x?html5?|xml|css|svg|jsx|mark ?up|web ?(?:page|site)s?|tags?|hyperlinks?|bbcode)\b"
    r"|网页|網頁|标签|標籤|超链接",
    re.IGNORECASE,
)
_SPEAKS_OF_MARKUP = re.compile(r"\b(?:x?html5?|xml|jsx|mark ?up)\b|标签|標籤", re.IGNORECASE)
# Whole documents and what only pages have: in a conversation that is code, not litter.
_PAGE = re.compile(r"<!doctype\s|<(?:html|head|body|script|style|form|input|button|link|meta)[\s>]", re.IGNORECASE)


def strip_html(text: str) -> str:
    """Turn HTML into plain text, and leave text that is none as it is.

    Left alone: text that speaks of HTML, Markdown code and table rows, JSON, XML, JSX and unmarked code, tags of chat
    models (``<think>``, ``<tool_call>``, ``<|im_end|>``), ``a < b``, ``List<int>``, ``<3``. Without tags only entities
    that nothing but HTML has are resolved (``&nbsp;``, ``&amp;``, ``&#39;``, …). `html_tags` says what counts as HTML,
    `html_render` what becomes of it.

    Raises:
        UserError: the text holds HTML and selectolax is not installed.
    """
    if "<" not in text and "&" not in text:
        return text
    if _is_json(text):
        return text
    hidden, put_back = hide_code(text)
    spans = html_spans(hidden)
    if spans:
        plain = _parsed(hidden, spans).strip()
        return text if _SPEAKS_OF_MARKUP.search(plain) else put_back(plain)
    return put_back(_resolve_plain_entities(hidden))


def is_about_markup(text: str) -> bool:
    """Whether a turn of a conversation speaks of HTML or is a whole page: then markup in the conversation is wanted."""
    return bool(_ABOUT_MARKUP.search(text) or ("<" in text and _PAGE.search(text)))


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(text: str, spans: list[tuple[int, int]]) -> str:
    """Give the parser the tags that are HTML as such and everything else escaped, so that it eats nothing else."""
    pieces, done = [], 0
    for start, end in spans:
        pieces += [_escaped(text[done:start]), text[start:end]]
        done = end
    source = "".join([*pieces, _escaped(text[done:])])
    parser: Callable[[str], object] = load("selectolax.lexbor", "clean.html").LexborHTMLParser
    body = parser(f"<body><main>{source}</main>").body  # type: ignore[attr-defined]
    return render(body.first_child)


def _escaped(text: str) -> str:
    text = _NO_BREAK_SPACE.sub(" ", _ESCAPED_TWICE.sub("&", text))
    pieces, done = [], 0
    for match in entities(text):
        pieces += [text[done : match.start()].replace("&", "&amp;"), match[0]]
        done = match.end()
    return "".join([*pieces, text[done:].replace("&", "&amp;")]).replace("<", "&lt;")


def _resolve_plain_entities(text: str) -> str:
    if not _PLAIN_ENTITY.search(text):
        return text
    text = _NO_BREAK_SPACE.sub(" ", _ESCAPED_TWICE.sub("&", text))
    resolved = _PLAIN_ENTITY.sub(lambda match: unescape(match[0]), text)
    return text if html_spans(resolved) else resolved  # tags written out on purpose stay written out
