from __future__ import annotations

import re
import unicodedata

import ftfy
import pytest
from ftfy.badness import BADNESS_RE
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_recipes.data.clean import unicode_text
from hf_recipes.data.clean.unicode_text import mend_unicode


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("Itâ€™s a cafÃ©.", "It’s a café."),
        ("I firstÂ saw", "I first\xa0saw"),
        ("ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Привет"),
        ("æ–‡å\xad—", "文字"),
        ("cafe\u0301", "café"),
        ("o\ufb00er", "offer"),
        ("\ud83d\ude00", "😀"),
        ("\x85and \x93so\x94", "…and “so”"),
    ],
)
def test_broken_text_is_mended(broken, mended):
    assert mend_unicode(broken) == mended


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "“Curly” quotes — and ‘these’… stay, as does 5 °C.",
        "全角，标点！（ＡＢＣ）　ｶﾅ",
        "&eacute; &amp; <b>",
        "Å, naïve, Œuvre, fiancée, ½, 10³, ﷺ",
        "line\r\nbreaks\x0c\ttabs",
        "a\u200db \x1b[31mred",
    ],
)
def test_right_text_stays(text):
    assert mend_unicode(text) == text


def _literals(pattern: str, flags: int) -> tuple[set[int], int]:
    """All characters a pattern names, and the most characters it can match."""
    parser, constants = re._parser, re._constants  # type: ignore[attr-defined]
    codes: set[int] = set()

    def walk(tree):
        for operation, value in tree:
            if operation is constants.LITERAL:
                codes.add(value)
            elif operation is constants.RANGE:
                codes.update(range(value[0], value[1] + 1))
            elif operation is constants.IN:
                walk(value)
            elif operation is constants.BRANCH:
                for branch in value[1]:
                    walk(branch)
            elif operation is constants.SUBPATTERN:
                walk(value[-1])
            elif operation in (constants.MAX_REPEAT, constants.MIN_REPEAT):
                walk(value[2])

    tree = parser.parse(pattern, flags)
    walk(tree)
    return codes, tree.getwidth()[1]


def test_the_cheap_test_looks_at_all_that_ftfy_takes_for_mojibake():
    codes, width = _literals(BADNESS_RE.pattern, BADNESS_RE.flags)
    assert width <= unicode_text._WIDTH
    assert all(unicode_text._SIGN.match(chr(code)) for code in codes if code > 0x7F)
    assert "(?" not in BADNESS_RE.pattern  # nothing looks further than the match
    assert BADNESS_RE.pattern.replace("[^", "").count("^") == 1  # and one sign alone hangs on the start of a line


_CODES, _ = _literals(BADNESS_RE.pattern, BADNESS_RE.flags)
_SIGNS = st.sampled_from([chr(code) for code in sorted(_CODES) if code > 0x7F])
_MIXED = st.lists(st.one_of(_SIGNS, st.sampled_from(list("abcXYZ ,.\n中文е\u0301ﬁ\ud83d\ude00"))), max_size=30).map(
    "".join
)
_MOJIBAKE = st.text(st.sampled_from("é’“ñ中привет üß a\n"), max_size=20).map(
    lambda text: text.encode().decode("windows-1252", "replace")
)


@given(st.one_of(_MIXED, _MOJIBAKE, st.text(max_size=40)))
@settings(max_examples=400, deadline=None)
@example("x\nÂ y")
@example("Ã la")
@example("abcdefghijklâabcdefgh€™")
def test_the_cheap_test_never_changes_the_result(text):
    config = unicode_text._ftfy()[1]
    assert mend_unicode(text) == ftfy.fix_text(text, config)
    assert unicodedata.is_normalized("NFC", mend_unicode(text))
