"""The Chinese pages say what the English ones say: same commands and outputs, same shape, no dead link.

Words cannot be compared here. What must be the same in both languages can: whole code blocks, the levels of headings,
rows of tables, flags and commands in the text, and where the links go.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SECTION = "中文"
FOLDER = "zh/"
# Lists that are looked up by an English name or message; so is what stands under "Reference".
ENGLISH_ONLY = {"errors.md"}

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) ", re.MULTILINE)
_ROW = re.compile(r"^\|", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND = ("hf-recipes", "--")


def _nav() -> list[Any]:
    return list(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def _pages(entries: Any) -> Iterator[str]:
    """Every page below an entry of the nav, in order."""
    if isinstance(entries, str):
        yield entries
    for entry in entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ():
        yield from _pages(entry)


def _chinese_nav() -> list[str]:
    return [page for entry in _nav() if SECTION in entry for page in _pages(entry)]


PAIRS = [("README.md", "README_zh.md")] + [
    (f"docs/{page.removeprefix(FOLDER)}", f"docs/{page}") for page in _chinese_nav()
]
each_pair = pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=[chinese for _, chinese in PAIRS])


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _prose(path: str) -> str:
    return _FENCE.sub("", _text(path))


def _targets(path: str) -> Counter[str]:
    """Where the links of a page go, from the root of the repository; a Chinese page stands for its English one."""
    english_of = {chinese: english for english, chinese in PAIRS}
    found: Counter[str] = Counter()
    for link in _LINK.findall(_prose(path)):
        if "://" not in link:
            page, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), page)) if page else path
            link = f"{english_of.get(target, target)}#{anchor}"
        found[link] += 1
    return found


def test_every_page_but_the_reference_is_there_in_chinese() -> None:
    """A new page is translated into docs/zh and named in the nav, or named in ENGLISH_ONLY."""
    english = {page for entry in _nav() if not entry.keys() & {SECTION, "Reference"} for page in _pages(entry)}
    assert len(english) > 30
    assert english - ENGLISH_ONLY <= {page.removeprefix(FOLDER) for page in _chinese_nav()}


def test_every_chinese_file_is_in_the_nav() -> None:
    files = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "zh").rglob("*.md")}
    assert files == set(_chinese_nav())


@each_pair
def test_code_blocks_are_the_same(english: str, chinese: str) -> None:
    assert _FENCE.findall(_text(chinese)) == _FENCE.findall(_text(english))


@each_pair
def test_headings_and_tables_are_the_same(english: str, chinese: str) -> None:
    assert _HEADING.findall(_prose(chinese)) == _HEADING.findall(_prose(english))
    assert len(_ROW.findall(_prose(chinese))) == len(_ROW.findall(_prose(english)))


@each_pair
def test_no_flag_or_command_is_left_out(english: str, chinese: str) -> None:
    told = set(_CODE.findall(_prose(chinese)))
    assert {code for code in _CODE.findall(_prose(english)) if code.startswith(_COMMAND)} <= told


@each_pair
def test_links_go_to_the_same_places(english: str, chinese: str) -> None:
    there, here = _targets(english), _targets(chinese)
    # Each language names the other one at its top; both are the English page here.
    here.pop(f"{english}#", None)
    there.pop(f"{english}#", None)
    assert here == there


@each_pair
def test_every_link_leads_somewhere(english: str, chinese: str) -> None:
    for link in _LINK.findall(_prose(chinese)):
        if "://" not in link:
            page, _, anchor = link.partition("#")
            target = ROOT / posixpath.join(posixpath.dirname(chinese), page) if page else ROOT / chinese
            assert target.is_file(), link
            # mkdocs makes no readable anchor of a Chinese heading: what is linked to is marked.
            assert not anchor or f'<a id="{anchor}"></a>' in target.read_text(encoding="utf-8"), link


@each_pair
def test_it_is_chinese(english: str, chinese: str) -> None:
    """No sentence was left untranslated; names and titles may stand in English."""
    text = _CODE.sub("", re.sub(r'"[^"]*"', "", _prose(chinese)))
    assert not re.findall(r"[A-Za-z]{2,}(?:[ ,]+[A-Za-z]{2,}){9,}", text)
    assert re.search("[一-鿿]", text)
