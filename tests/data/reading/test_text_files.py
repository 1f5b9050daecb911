from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.blocks import BLOCK_ROWS, Limits
from hf_recipes.data.reading.readers import read_blocks, read_file
from hf_recipes.data.reading.text_files import whole_file_blocks


def read(file):
    return {place.row: value for place, value in read_file(file)}


def test_d1_one_line_with_a_bad_byte_is_one_bad_row(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes('{"text": "é"}\n'.encode() + b'{"text": "\xe9"}\n' + b'{"text": "c"}\n')
    rows = read(file)
    assert rows[1] == {"text": "é"} and rows[3] == {"text": "c"}
    assert isinstance(rows[2], BadRow) and rows[2].reason == "not UTF-8"
    assert rows[2].detail == "byte 10 of the line is 0xe9"


def test_few_bad_lines_in_a_long_plain_file_are_bad_rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    lines = [b'{"text": "a"}'] * 100 + [b'{"text": "\xe9"}'] * 3
    file.write_bytes(b"\n".join(lines))
    assert sum(isinstance(value, BadRow) for value in read(file).values()) == 3


def test_a_file_whose_lines_mostly_have_another_encoding_is_one_error(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes("".join(f'{{"text": "schön{number}"}}\n' for number in range(50)).encode("latin-1"))
    with pytest.raises(UserError, match=r"is not UTF-8 \(byte 13, line 1\)"):
        read(file)


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b", "a\x1cb", "a\u3000"])
def test_only_line_feeds_end_a_line(tmp_path, text):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\r\n{}\r\n", encoding="utf-8", newline="")
    assert read(file) == {1: {"text": text}, 2: {}}


def test_white_space_around_a_line_and_blank_lines_are_nothing(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('\n  {"a": 1} \t\n \t \n{"b": 2}', encoding="utf-8")
    assert read(file) == {2: {"a": 1}, 4: {"b": 2}}


@pytest.mark.parametrize(
    "line", ['{"a": 1} x', "[" * 100_000, "nul", '"' + "\ud800".encode("utf-8", "replace").decode()]
)
def test_d1_lines_that_are_not_json_are_named(tmp_path, line):
    file = tmp_path / "rows.jsonl"
    file.write_text(line + "\n{}\n", encoding="utf-8")
    rows = read(file)
    assert isinstance(rows[1], BadRow) and rows[1].reason == "not valid JSON"
    assert rows[2] == {}


def test_lone_surrogates_stay_for_the_cleaning_to_see(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "\\ud800"}\n')
    assert read(file)[1]["text"] == "\ud800"


def test_csv_rows_after_a_line_break_inside_quotes_keep_their_line(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text('instruction,output\n"two\nlines",x\na,b\nshort\n', encoding="utf-8")
    for limits in (Limits(), Limits(rows=1)):
        places = {place.row: value for block in read_blocks(file, limits) for place, value in block.rows()}
        assert places[2] == {"instruction": "two\nlines", "output": "x"}
        assert places[4] == {"instruction": "a", "output": "b"}
        assert isinstance(places[5], BadRow)


@pytest.mark.parametrize(
    ("name", "sign"), [("x.csv", ";"), ("x.csv", "\t"), ("x.csv", "|"), ("x.tsv", "\t"), ("x.csv", ",")]
)
def test_what_separates_the_cells_is_found_from_the_header(tmp_path, name, sign):
    (tmp_path / name).write_text(f'a{sign}b\n"1{sign},"{sign}2;\n'.replace("2;", "2"), encoding="utf-8")
    assert read(tmp_path / name) == {2: {"a": f"1{sign},", "b": "2"}}


def test_d1_nul_bytes_in_a_cell_are_named_with_their_column(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,2\n1,\0\n")
    rows = read(tmp_path / "x.csv")
    assert rows[2] == {"a": "1", "b": "2"}
    assert rows[3].reason == "a cell holds a NUL byte" and rows[3].detail == "column 'b'"


def test_plain_text_is_a_row_a_line(tmp_path):
    (tmp_path / "x.txt").write_text("one\r\n\n  two  \nthree", newline="")
    assert read(tmp_path / "x.txt") == {1: {"text": "one"}, 3: {"text": "  two  "}, 4: {"text": "three"}}


def test_files_taken_whole_share_blocks_and_bad_ones_are_named(tmp_path):
    for name, data in (
        ("a.py", b"x = 1\n\n"),
        ("b.py", b"\xff\xfe\xff"),
        ("c.py", "é = 2\n".encode()),
        ("d.bin", bytes(99)),
    ):
        (tmp_path / name).write_bytes(data)
    files = sorted(tmp_path.iterdir())
    (block,) = whole_file_blocks(files, Limits())
    rows = [value for _, value in block.rows()]
    assert rows[0] == {"text": "x = 1\n\n", "path": str(files[0])}
    assert rows[2]["text"] == "é = 2\n"
    assert all(isinstance(rows[index], BadRow) and rows[index].reason == "not UTF-8" for index in (1, 3))
    assert len(list(whole_file_blocks(files, Limits(rows=1)))) == 4


@pytest.mark.parametrize("rest", ["q0,a0\n" * 3, "", "q0,a0"])
def test_a_quote_that_is_never_closed_swallows_no_row_unsaid(tmp_path, rest):
    (tmp_path / "rows.csv").write_text('instruction,output\na,b\nx,"unclosed\n' + rest)
    with pytest.raises(UserError, match=r"line \d: not valid CSV \(a quote that opens in the record of line 3"):
        read(tmp_path / "rows.csv")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_csv_file_ends_in_any_way(tmp_path, end):
    (tmp_path / "rows.csv").write_bytes(b'instruction,output\na,"b\nc"' + end.encode())
    assert list(read(tmp_path / "rows.csv").values()) == [{"instruction": "a", "output": "b\nc"}]


def test_d1_one_damaged_line_alone_in_its_block_is_one_bad_row(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "a"}\n' * BLOCK_ROWS + b'{"text": "\xe9"}\n')
    rows = list(read(tmp_path / "rows.jsonl").values())
    assert len(rows) == BLOCK_ROWS + 1 and isinstance(rows[-1], BadRow)
