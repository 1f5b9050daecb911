from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.data.byte_streams import first_bad_byte
from hf_recipes.data.ledger import BadRow, Ledger
from hf_recipes.data.readers import read_file
from hf_recipes.data.sources import SourceSpec, read_rows

ROWS = [{"instruction": "a", "output": "b"}, {"instruction": "c", "output": "d\n\u2028e"}]


def write_rows(path, rows):
    """Write rows in the format that the file's ending names."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        import csv

        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, ending):
    file = write_rows(tmp_path / f"rows.{ending}", ROWS)
    assert [value for _, value in read_file(file)] == ROWS


@pytest.mark.parametrize(
    ("ending", "numbers"),
    # 1-based lines: a CSV's first row stands below its header; arrays and Parquet count from 0.
    [("jsonl", [1, 2]), ("csv", [2, 3]), ("json", [0, 1]), ("parquet", [0, 1])],
)
def test_rows_are_numbered_as_an_editor_shows_them(tmp_path, ending, numbers):
    file = write_rows(tmp_path / f"rows.{ending}", ROWS)
    assert [place.row for place, _ in read_file(file)] == numbers


def test_csv_rows_after_a_line_break_inside_quotes_keep_their_line(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text('instruction,output\n"two\nlines",x\na,b\nshort\n', encoding="utf-8")
    places = {place.row: value for place, value in read_file(file)}
    assert places[2] == {"instruction": "two\nlines", "output": "x"}
    assert places[4] == {"instruction": "a", "output": "b"}
    assert isinstance(places[5], BadRow)


def test_json_file_with_one_object_a_line_is_read_as_jsonl(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    assert [value for _, value in read_file(file)] == ROWS


def test_byte_order_mark_is_not_part_of_the_first_key(tmp_path):
    for ending in ("json", "jsonl", "csv"):
        plain = write_rows(tmp_path / f"plain.{ending}", ROWS)
        marked = tmp_path / f"marked.{ending}"
        marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
        assert [value for _, value in read_file(marked)] == ROWS, ending


def test_d1_bad_line_is_counted_with_file_and_line_and_the_others_are_kept(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n\n{"text": \n[1]\n{"text": "b"}\n', encoding="utf-8")
    ledger = Ledger("rows")
    kept = [row["text"] for _, row in read_rows(SourceSpec(str(file)), ledger)]
    assert kept == ["a", "b"]
    assert ledger.read == 4
    assert ledger.as_dict()["dropped"]["not valid JSON"]["examples"][0]["row"] == 3
    assert ledger.dropped.counts["the row is not an object with named fields"] == 1


def test_bad_rows_fail_names_file_and_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{"text": \n', encoding="utf-8")
    with pytest.raises(UserError, match=r"rows\.jsonl, row 2: not valid JSON .*bad_rows: drop"):
        list(read_rows(SourceSpec(str(file)), Ledger("rows", bad_rows="fail")))


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv"])
def test_other_encoding_names_file_and_byte(tmp_path, ending):
    file = tmp_path / f"rows.{ending}"
    # "[" and 20 spaces, then é in Latin-1: byte 21 is the first that is not UTF-8.
    file.write_bytes(b"[" + b" " * 20 + b"\xe9" + b"\n")
    with pytest.raises(UserError, match=rf"rows\.{ending}' is not UTF-8 \(byte 21, line 1\)"):
        list(read_file(file))


def test_first_bad_byte_is_found_behind_a_chunk_border(tmp_path):
    file = tmp_path / "rows.jsonl"
    border = 1 << 20
    file.write_bytes(b"a" * (border - 1) + "é".encode() + b"b" * 10 + b"\xff")
    assert first_bad_byte(file).offset == border - 1 + 2 + 10


@pytest.mark.parametrize(("ending", "content"), [("json", "[]"), ("json", ""), ("jsonl", "\n"), ("csv", "a,b\n")])
def test_empty_file_is_an_error(tmp_path, ending, content):
    file = tmp_path / f"rows.{ending}"
    file.write_text(content)
    with pytest.raises(UserError, match="holds no rows"):
        list(read_file(file))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.json", '[{"text": "a"},\n{"text" "b"}]', r"not valid JSON.*line 2"),
        ("rows.json", '{\n"data": [{"text": "a"}]\n}', "must hold a JSON array"),
        ("rows.parquet", "no parquet", "not a readable Parquet file"),
    ],
)
def test_file_that_is_not_of_its_kind_is_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        list(read_file(tmp_path / name))
