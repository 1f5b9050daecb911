from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.clean.markdown_code import hide_code


def test_fences_inline_code_and_table_rows_are_hidden():
    hidden, put_back = hide_code("A `x` and ``y ` z``.\n```py\nprint('`')\n```\n| a | b |\n~~~\nt\n~~~\nend")
    assert not any(part in hidden for part in ("x", "y", "print", "| a", "~~~"))
    assert hidden.startswith("A ") and hidden.endswith("\nend")
    assert put_back(hidden.upper()).endswith("\nEND") and "print('`')" in put_back(hidden.upper())


def test_a_lone_backtick_and_a_pipe_in_prose_hide_nothing():
    for text in ("it`s fine", "a | b", "one ` \n\n two `"):
        assert hide_code(text)[0] == text


@given(st.text(st.sampled_from("ab`~|\n \U000f0000"), max_size=80))
def test_what_was_hidden_comes_back(text):
    hidden, put_back = hide_code(text)
    assert put_back(hidden) == text
