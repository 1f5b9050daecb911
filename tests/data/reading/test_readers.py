from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_files import write_rows

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow, Ledger
from hf_recipes.data.reading.blocks import Limits
from hf_recipes.data.reading.readers import READERS, read_blocks, read_file
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import read_rows

ROWS = [{"instruction": "a", "output": "b"}, {"instruction": "c", "output": "d\n\u2028e"}]
TABLES = [".csv", ".tsv", ".parquet", ".arrow", ".feather"]
ENDINGS = [".json", ".jsonl", ".ndjson", *TABLES, ".json.gz", ".jsonl.gz", ".csv.gz", ".json.zst", ".jsonl.zst"]


def test_every_ending_is_tried_here():
    assert {name.removesuffix(".gz").removesuffix(".zst") for name in READERS} == {
        name.removesuffix(".gz").removesuffix(".zst") for name in [*ENDINGS, ".txt"]
    }


@pytest.mark.parametrize("kind", ENDINGS)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, kind):
    file = write_rows(tmp_path / f"rows{kind}", ROWS)
    assert [value for _, value in read_file(file)] == ROWS


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LIMITS = st.builds(Limits, rows=st.integers(1, 9), bytes=st.integers(1, 200))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


def assert_read_back(file: Path, rows, limits):
    blocks = list(read_blocks(file, limits))
    assert all(1 <= len(list(block.rows())) <= limits.rows for block in blocks)
    sent = [pickle.loads(pickle.dumps(block)) for block in blocks]
    assert [value for block in sent for _, value in block.rows()] == rows
    assert [row for block in sent for row in block.rows()] == list(read_file(file))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([kind for kind in ENDINGS if "json" in kind]), st.lists(JSON_VALUES, min_size=1), LIMITS)
def test_any_json_values_are_read_back_at_any_block_size(folder, kind, rows, limits):
    assert_read_back(write_rows(folder / f"rows{kind}", rows), rows, limits)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*TABLES, ".csv.gz", ".csv.zst"]),
    st.lists(st.fixed_dictionaries({"instruction": TEXT, "output": TEXT}), min_size=1),
    LIMITS,
)
def test_any_table_of_text_is_read_back_at_any_block_size(folder, kind, rows, limits):
    assert_read_back(write_rows(folder / f"rows{kind}", rows), rows, limits)


@pytest.mark.parametrize("name", ["alpaca_en_demo.json", "glaive_toolcall_en_demo.json", "v1_sft_demo.jsonl"])
@pytest.mark.parametrize("kind", [".jsonl.zst", ".parquet", ".arrow"])
def test_real_rows_are_the_same_in_every_kind_of_file(shared_data, tmp_path, name, kind):
    rows = [value for _, value in read_file(shared_data / name)]
    file = write_rows(tmp_path / f"rows{kind}", rows)
    assert [value for block in read_blocks(file, Limits(97)) for _, value in block.rows()] == rows


@pytest.mark.parametrize(
    ("kind", "numbers"),
    # 1-based lines: a CSV's first row stands below its header; arrays and tables of columns count from 0.
    [(".jsonl", [1, 2]), (".csv", [2, 3]), (".json", [0, 1]), (".parquet", [0, 1]), (".arrow", [0, 1])],
)
def test_rows_are_numbered_as_an_editor_shows_them(tmp_path, kind, numbers):
    file = write_rows(tmp_path / f"rows{kind}", ROWS)
    for limits in (Limits(), Limits(rows=1)):
        assert [place.row for block in read_blocks(file, limits) for place, _ in block.rows()] == numbers


def test_json_file_with_one_object_a_line_is_read_as_jsonl(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    assert [value for _, value in read_file(file)] == ROWS


def test_d1_bad_line_is_counted_with_file_and_line_and_the_others_are_kept(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n\n{"text": \n[1]\n{"text": "b"}\n', encoding="utf-8")
    ledger = Ledger("rows")
    kept = [row["text"] for _, row in read_rows(SourceSpec(str(file)), ledger)]
    assert kept == ["a", "b"]
    assert ledger.read == 4
    dropped = ledger.as_dict()["dropped"]
    assert dropped["not valid JSON"]["examples"][0]["row"] == 3
    assert dropped["the row is not an object with named fields"]["count"] == 1


def test_bad_rows_fail_names_file_and_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{"text": \n', encoding="utf-8")
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2: not valid JSON .*bad_rows: drop"):
        list(read_rows(SourceSpec(str(file)), Ledger("rows", bad_rows="fail")))


@pytest.mark.parametrize(
    ("name", "content"), [("x.json", "[]"), ("x.json", ""), ("x.jsonl", "\n"), ("x.csv", "a,b\n"), ("x.txt", " \n\n")]
)
def test_empty_file_is_an_error(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="holds no rows"):
        list(read_file(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.json", '[{"text": "a"},\n{"text" "b"}]', r"not valid JSON \(row 1, line 2, column 9\)"),
        ("rows.json", '{\n"v": 1, "data": [{"text": "a"}]\n}', "must hold a JSON array .*its key 'data' holds a list"),
        ("rows.json", '{\n"data": {"text": "a"}\n}', "put its rows into an array"),
        ("rows.json", "3", "not one int"),
        ("rows.parquet", "no parquet", "not a readable Parquet file"),
        ("rows.arrow", "no arrow", "not a readable Arrow file"),
        ("rows.feather", "ARROW1 no arrow", "not a readable Arrow file"),
        ("rows.jsonl.gz", "no gzip", r"not a sound \.gz archive"),
        ("rows.jsonl.zst", "no zstd", r"not a sound \.zst archive"),
        ("rows.csv", "a,b,a\n1,2,3\n", "two columns named 'a'"),
    ],
)
def test_file_that_is_not_of_its_kind_is_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        list(read_file(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_absent_file_and_directory_are_one_sentence(tmp_path):
    for name, message in (("x.jsonl", "No such file"), ("x.parquet", "No such file"), ("x.json.gz", "No such file")):
        with pytest.raises(UserError, match=message):
            list(read_file(tmp_path / name))
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(UserError, match="Is a directory"):
        list(read_file(tmp_path / "d.jsonl"))


@pytest.mark.parametrize("kind", [".jsonl.gz", ".json.gz", ".csv.zst", ".jsonl.zst"])
def test_archive_cut_short_is_named(tmp_path, kind):
    rows = [{"instruction": str(number), "output": str(number**5)} for number in range(2000)]
    file = write_rows(tmp_path / f"rows{kind}", rows)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"is cut short: .* get the file again"):
        list(read_file(file))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """A peak in a new process, for arrays, lines and tables of one row group: 10 × the rows, the same memory."""
    import pyarrow.parquet

    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom hf_recipes.data.reading.readers import read_blocks\n"
        "import pyarrow.parquet\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "def read(name): return sum(1 for block in read_blocks(Path(name)) for _ in block.rows())\n"
        "read(sys.argv[1]); before = peak(); assert read(sys.argv[2]) == 40_000; print(peak() - before)"
    )
    row = '{"instruction": "%d", "output": "' + "word " * 200 + '"}'
    for kind in (".json", ".jsonl", ".parquet"):
        files = []
        for count in (4_000, 40_000):
            file = tmp_path / f"{count}{kind}"
            if kind == ".parquet":
                numbers = [str(number) for number in range(count)]
                texts = [number + " word" * 200 for number in numbers]
                pyarrow.parquet.write_table(pyarrow.table({"instruction": numbers, "output": texts}), file)
            else:
                lines = [row % number for number in range(count)]
                file.write_text("\n".join(lines) if kind == ".jsonl" else "[" + ",\n".join(lines) + "]")
            files.append(str(file))
        result = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
        # The larger file has 41 MB of text; held whole it would be that and more.
        assert float(result.stdout) < 15, kind


def test_bad_rows_go_through_pickle_as_they_are(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("a,b\n1\n")
    (block,) = read_blocks(file)
    ((_, fault),) = pickle.loads(pickle.dumps(list(block.rows())))
    assert isinstance(fault, BadRow) and fault.detail == "1 against 2"
