from __future__ import annotations

from hf_recipes.export.forms.table import form_cells, render_forms

BASE = {"name": "base", "size_bytes": 269_000_000, "load_seconds": 1.25, "ms_per_token": 31.4}
Q8 = {
    "name": "gguf:q8_0",
    "size_bytes": 144_800_000,
    "load_seconds": 0.2,
    "memory_bytes": None,
    "general": {"nats_per_token": 0.7191},
    "domain": {"parses": 0.984, "fits_schema": None, "exact": 0.5},
    "closeness": {"kl_mean": 0.00123, "same_answers": 3, "answers": 4},
}


def test_the_table():
    assert render_forms([BASE, Q8]).splitlines() == [
        "form       MB on disk  load s  ms/token  general loss  JSON parses  all right  KL to merged  same answers",
        "---------  ----------  ------  --------  ------------  -----------  ---------  ------------  ------------",
        "base              269     1.2        31",
        "gguf:q8_0         145     0.2                   0.719          98%        50%       1.2e-03           3/4",
    ]


def test_a_column_that_nobody_fills_is_left_out():
    assert list(form_cells([BASE])[0]) == ["form", "MB on disk", "load s", "ms/token"]
    assert form_cells([]) == []
