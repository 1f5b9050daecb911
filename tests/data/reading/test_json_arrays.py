from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hf_recipes.data.reading.json_arrays as json_arrays
from hf_recipes.core.errors import UserError
from hf_recipes.data.reading.readers import read_file

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture
def small_window(monkeypatch):
    """A window that ends inside most values; nothing shorter than the longest token that may be cut."""
    monkeypatch.setattr(json_arrays, "WINDOW_CHARACTERS", 17)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("arrays") / "rows.json"


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(VALUES, min_size=1, max_size=8),
    indent=st.sampled_from([None, 0, 3]),
    escaped=st.booleans(),
    window=st.integers(1, 40),
)
def test_elements_are_the_same_wherever_the_window_ends(file, values, indent, escaped, window):
    text = json.dumps(values, indent=indent, ensure_ascii=escaped)
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "WINDOW_CHARACTERS", window)
        if escaped or not any(0xD800 <= ord(sign) <= 0xDFFF for sign in text):
            assert [value for _, value in read_file(file)] == values


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(VALUES, min_size=1, max_size=4),
    cut=st.integers(0, 200),
    damage=st.sampled_from(["", "x", '"', ",", "]", "}", "\\", "1"]),
)
def test_d1_damaged_array_is_an_error_exactly_where_json_says_so(file, values, cut, damage):
    text = json.dumps(values)
    text = text[: cut % len(text)] + damage + text[cut % len(text) + 1 :]
    file.write_text(text)
    try:
        wanted = json.loads(text)
    except ValueError:
        wanted = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "WINDOW_CHARACTERS", 7)
        if isinstance(wanted, list) and wanted:
            assert [value for _, value in read_file(file)] == wanted
        elif not text.startswith("{"):
            with pytest.raises(UserError):
                list(read_file(file))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[{"a": 1},\n {"a": 2},\n {"a" 3}]', r"row 2, line 3, column 7\): Expecting ':' delimiter"),
        ('[{"a": 1},\n {"a": 2}', r"row 1, line 2, column 10\): The file ends where ']' must stand"),
        ('[{"a": 1},\n {"a": "2', r"row 1, line 2, column 8\): Unterminated string"),
        ('[{"a": 1},\n]', r"row 1, line 2, column 1\): Expecting value"),
        ('[{"a": 1},', r"row 1, line 1, column 11\): The file ends where a value must stand"),
        ('[{"a": 1} {"a": 2}]', r"row 0, line 1, column 11\): Expecting ']'"),
        ('[{"a": 1}]\n[]', r"line 2, column 1\): Extra data after the array"),
        ("[" * 100_000, r"row 0, line 1, column 2\): .*recursion"),
    ],
)
def test_fault_is_named_with_row_line_and_column(file, text, where):
    file.write_text(text)
    with pytest.raises(UserError, match=rf"'.*rows\.json' is not valid JSON \({where}"):
        list(read_file(file))


def test_positions_are_right_behind_many_windows(file, small_window):
    rows = ",\n".join(json.dumps({"text": "é" * number}) for number in range(200))
    file.write_text(f"[{rows},\n  {{bad}}]", encoding="utf-8")
    # 200 good rows on lines 1 to 200; the bad one is row 200 on line 201, its fault one behind two spaces and a brace.
    with pytest.raises(UserError, match=r"row 200, line 201, column 4"):
        list(read_file(file))


def test_rows_before_a_fault_are_read(file):
    rows = [{"n": number} for number in range(20_000)]
    file.write_text(json.dumps(rows)[:-1] + ", nonsense]")
    read = []
    with pytest.raises(UserError, match="row 20000"):
        read.extend(value for _, value in read_file(file))
        raise AssertionError
    for_sure = iter(read_file(file))
    assert [next(for_sure)[1] for _ in range(16_384)] == rows[:16_384]  # four whole blocks
