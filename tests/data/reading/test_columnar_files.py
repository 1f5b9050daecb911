from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.reading.blocks import Limits
from hf_recipes.data.reading.columnar_files import ArrowBlock, batch_blocks, without_nulls
from hf_recipes.data.reading.readers import read_blocks, read_file

# What Arrow can hold without changing it: fields of one type each, structs whose absent fields are left out.
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "tool"])},
        optional={"content": st.text(max_size=4), "weight": st.integers(0, 1), "parts": st.lists(st.text(max_size=3))},
    ),
    max_size=3,
)
ROWS = st.lists(
    st.fixed_dictionaries({"messages": TURNS | st.none(), "n": st.integers(0, 9) | st.none(), "ok": st.booleans()}),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("columns") / "rows.parquet"


@settings(max_examples=80, deadline=None)
@given(ROWS, st.integers(1, 13), st.integers(1, 300))
def test_nested_rows_are_read_back_without_the_nulls_arrow_adds(file, rows, block_rows, block_bytes):
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file, row_group_size=5)
    read = [pickle.loads(pickle.dumps(block)) for block in read_blocks(file, Limits(block_rows, block_bytes))]
    assert [row for block in read for _, row in block.rows()] == rows


@settings(max_examples=80, deadline=None)
@given(ROWS, st.integers(0, 11))
def test_columns_in_slices_are_what_arrow_says_but_for_nulls(rows, start):
    batch = pa.RecordBatch.from_pylist(rows).slice(start)
    read = [row for _, row in ArrowBlock("x", 0, batch).rows()]
    assert read == [{name: without_nulls(value) for name, value in row.items()} for row in batch.to_pylist()]


def test_columns_of_other_kinds_are_read(tmp_path):
    table = pa.table(
        {
            "words": pa.array(["a", "b", "a", None]).dictionary_encode(),
            "json": pa.array(['"a"', '[{"b": null}]', None, "1"], pa.json_()),
            "wide": pa.array([["x"], [], None, ["y", "z"]], pa.large_list(pa.large_string())),
            "empty": pa.array([{}, None, {}, {}], pa.struct([])),
            "fixed": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
        }
    )
    with pa.OSFile(str(tmp_path / "x.feather"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert [row for _, row in read_file(tmp_path / "x.feather")] == [
        {"words": "a", "json": "a", "wide": ["x"], "empty": {}, "fixed": [1, 2]},
        {"words": "b", "json": [{"b": None}], "wide": [], "empty": None, "fixed": None},
        {"words": "a", "json": None, "wide": None, "empty": {}, "fixed": [3, 4]},
        {"words": None, "json": 1, "wide": ["y", "z"], "empty": {}, "fixed": [5, 6]},
    ]


def test_only_the_slice_is_sent_to_another_process():
    batch = pa.RecordBatch.from_pydict({"text": ["x" * 1000] * 1000})
    blocks = list(batch_blocks("x", iter([batch]), Limits(rows=10)))
    assert len(blocks) == 100
    assert len(pickle.dumps(blocks[50])) < 12_000  # its own ten rows of 1,000 letters


def test_wide_rows_make_small_blocks_and_keep_their_numbers():
    batches = [pa.RecordBatch.from_pydict({"text": ["x" * 1000] * 7})] * 2
    blocks = list(batch_blocks("x", iter(batches), Limits(bytes=3500)))
    assert all(block.batch.num_rows <= 3 for block in blocks)
    assert [place.row for block in blocks for place, _ in block.rows()] == list(range(14))


def test_two_columns_of_one_name_are_an_error(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match=r"x\.arrow' has two columns named 'a'"):
        list(read_file(tmp_path / "x.arrow"))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather"])
def test_file_cut_short_is_one_sentence(tmp_path, kind):
    table = pa.table({"text": [str(number**7) for number in range(5000)]})
    file = tmp_path / f"x.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, file)
    else:
        new = pa.ipc.new_stream if kind == "arrow" else pa.ipc.new_file
        with pa.OSFile(str(file), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(UserError, match=rf"x\.{kind}' .*") as caught:
        list(read_file(file))
    assert "\n" not in str(caught.value)
