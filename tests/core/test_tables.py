from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.tables import render_table

CELLS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)


def test_first_column_left_others_right():
    assert render_table(
        ["", "base", "tuned"], [["parses", 0, "98 %"], ["fits the schema", "3 %", 97]]
    ).splitlines() == [
        "                 base  tuned",
        "---------------  ----  -----",
        "parses              0   98 %",
        "fits the schema   3 %     97",
    ]


def test_a_table_without_rows_is_its_headers():
    assert render_table(["a", "bb"], []) == "a  bb\n-  --"


def test_columns_of_words_stand_left_and_signed_figures_right():
    lines = render_table(
        ["key", "change", "where"], [["loss", "-0.1", "eval"], ["tokens", "+12 %", "here"]]
    ).splitlines()
    assert lines == [
        "key     change  where",
        "------  ------  -----",
        "loss      -0.1  eval",
        "tokens   +12 %  here",
    ]


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1)))
def test_every_cell_stands_inside_its_column(rows):
    lines = render_table([f"h{number}" for number in range(len(rows[0]))], rows).splitlines()
    assert len(lines) == len(rows) + 2
    start = 0
    for column, rule in enumerate(lines[1].split("  ")):
        cut = [line[start : start + len(rule)].strip() for line in lines]
        assert cut == [f"h{column}", rule, *(row[column] for row in rows)]
        start += len(rule) + 2
