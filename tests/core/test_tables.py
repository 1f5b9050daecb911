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


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1)))
def test_every_cell_is_there_and_columns_end_together(rows):
    lines = render_table([f"h{number}" for number in range(len(rows[0]))], rows).splitlines()
    assert len(lines) == len(rows) + 2
    assert [line.split() for line in lines[2:]] == rows
    if len(rows[0]) > 1:  # the last column is aligned to the right, so no line is shorter than another
        assert len({len(line) for line in lines}) == 1
