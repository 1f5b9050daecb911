from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.clean.control import cleaned_of_controls, strip_control_characters


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\x00b\x07c\x7fd\x9be", "abcde"),
        ("one\r\ntwo\rthree\x0cfour\u2028five\x85six", "one\ntwo\nthree\nfour\nfive\nsix"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07ok", "red ok"),
        ("\ufeffstart, mid\ufeffdle", "start, middle"),
        ("sur\ud83drogate \udc00", "surrogate "),
        ("zero\u200bwidth so\u00adft wo\u2060rd", "zerowidth soft word"),
        ("a\u200db \u200cc", "ab c"),
        ("user\u202etxt.exe\u202c", "usertxt.exe"),
        ("hidden\U000e0041\U000e0042", "hidden"),
        ("\ufffe\uffff\ufdd0x", "x"),
    ],
)
def test_what_cannot_be_seen_goes(text, clean):
    assert strip_control_characters(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "tabs\tand\nlines",
        "می\u200cخواهم",  # Persian: the non-joiner is spelling
        "क्\u200dष",  # Devanagari: the joiner chooses a form
        "👨\u200d👩\u200d👧 👩🏽\u200d💻 ❤\ufe0f\u200d🔥",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",  # the flag of England
        "ភាសា\u200bខ្មែរ",  # Khmer: the zero width space parts words
        "עברית \u200f(abc)\u200f \u2067x\u2069",
        "caf\u00e9 \u00a0 \u3000 全角 “x” … \U0001f600 \ufffd",
        "\\x1b[31m as text",
    ],
)
def test_what_has_a_meaning_stays(text):
    assert strip_control_characters(text) == text


def test_what_was_removed_is_named():
    _, found = cleaned_of_controls("a\x00\x00b\u202ec\r\n\u200bd\x03")
    assert found == {"NUL": 2, "RIGHT-TO-LEFT OVERRIDE": 1, "CR LF": 1, "ZERO WIDTH SPACE": 1, "U+0003": 1}


def test_the_cheap_test_lets_nothing_pass():
    """Every character that alone is removed must be one that isprintable() refuses."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if character.isprintable():
            assert strip_control_characters(f"a{character}b") == f"a{character}b"
        if code < 0x20 and character not in "\t\n":
            assert character not in strip_control_characters(f"a{character}b")


@given(
    st.text(st.one_of(st.characters(), st.sampled_from("\x00\x1b[m\r\n\u200b\u200d\u202e\U000e0041🏴ب")), max_size=40)
)
def test_a_second_time_changes_nothing_and_the_rest_can_be_encoded(text):
    once = strip_control_characters(text)
    assert strip_control_characters(once) == once
    once.encode("utf-8")
