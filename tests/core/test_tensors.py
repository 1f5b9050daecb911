from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hf_recipes.core.tensors import (
    DamagedFile,
    SafetensorsWriter,
    TensorSpec,
    dtype_name,
    iter_entries,
    read_header,
    tensor_bytes,
    tensor_files,
    torch_dtype,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def write(file, tensors, metadata=None):
    specs = [TensorSpec(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in tensors.items()]
    with SafetensorsWriter(file, specs, metadata or {"format": "pt"}) as writer:
        for spec in writer.specs:
            writer.write(spec.name, tensor_bytes(tensors[spec.name]))


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__" and name.isprintable()),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    )
)
def test_what_is_written_is_read_by_us_and_by_safetensors(tmp_path_factory, shapes):
    file = tmp_path_factory.mktemp("w") / "model.safetensors"
    tensors = {name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in shapes.items()}
    write(file, tensors)
    entries, metadata = read_header(file)
    theirs = load_file(file)
    assert metadata == {"format": "pt"}
    assert set(entries) == set(theirs) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(theirs[name], tensor)
        assert torch.equal(entries[name].load(), tensor)
        assert theirs[name].dtype == entries[name].load().dtype == tensor.dtype


def test_wide_elements_come_first_so_that_all_are_aligned(tmp_path):
    file = tmp_path / "model.safetensors"
    write(file, {"bytes": torch.ones(3, dtype=torch.uint8), "halves": torch.ones(5).half(), "floats": torch.ones(2)})
    entries, _ = read_header(file)
    assert list(entries) == ["floats", "halves", "bytes"]
    assert all(entry.start % (torch_dtype(entry.dtype).itemsize) == 0 for entry in entries.values())
    assert next(iter(entries.values())).start % 8 == 0


def test_a_strided_tensor_is_written_row_by_row(tmp_path):
    file = tmp_path / "model.safetensors"
    write(file, {"t": torch.arange(6.0).reshape(2, 3).T})
    assert load_file(file)["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(("name", "size"), [("b", 8), ("a", 4), ("a", 12)])
def test_the_writer_takes_only_the_next_tensor_in_its_size(tmp_path, name, size):
    specs = [TensorSpec("a", "F32", (2,)), TensorSpec("b", "F32", (2,))]
    with (
        pytest.raises(ValueError, match="next is 'a' of 8"),
        SafetensorsWriter(tmp_path / "f", specs, {}) as writer,
    ):
        writer.write(name, bytes(size))


def test_the_writer_refuses_to_end_early_and_names_a_doubled_tensor(tmp_path):
    with (
        pytest.raises(ValueError, match="'a' was not written"),
        SafetensorsWriter(tmp_path / "f", [TensorSpec("a", "F32", (2,))], {}),
    ):
        pass
    twice = [TensorSpec("a", "F32", (2,)), TensorSpec("a", "F32", (2,))]
    with pytest.raises(ValueError, match="'a' is there twice"), SafetensorsWriter(tmp_path / "g", twice, {}):
        pass


def test_an_existing_file_is_not_written_over(tmp_path):
    (tmp_path / "f").write_text("mine")
    with pytest.raises(FileExistsError), SafetensorsWriter(tmp_path / "f", [], {}):
        pass
    assert (tmp_path / "f").read_text() == "mine"


def damaged(tmp_path, change):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4, 4), "b": torch.ones(3)}, file)
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header, data = change(header, data)
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, data: (header, data[:-1]), "the header describes"),
        (lambda header, data: (header, data + b"x"), "the header describes"),
        (lambda header, data: (b"{broken", data), "not JSON"),
        (lambda header, data: (b"[1]", data), "not a JSON object"),
        (lambda header, data: ({**header, "b": {**header["b"], "dtype": "F99"}}, data), "no readable dtype"),
        (lambda header, data: ({**header, "b": {**header["b"], "shape": [4]}}, data), "does not fill"),
        (
            lambda header, data: ({"b": header["b"]} if header["b"]["data_offsets"][0] else {"a": header["a"]}, data),
            "expected",
        ),
    ],
)
def test_damage_in_the_header_is_named(tmp_path, change, message):
    file = damaged(tmp_path, change)
    with pytest.raises(DamagedFile, match=message) as error:
        read_header(file)
    assert str(file) in str(error.value)


def test_a_header_longer_than_its_file_is_damage(tmp_path):
    file = tmp_path / "f"
    file.write_bytes((2**40).to_bytes(8, "little") + b"{}")
    with pytest.raises(DamagedFile, match="does not fit"):
        read_header(file)
    file.write_bytes(b"123")
    with pytest.raises(DamagedFile, match="too few"):
        read_header(file)


def test_a_file_cut_after_its_header_was_read_is_damage(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(100)}, file)
    entry = read_header(file)[0]["a"]
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(DamagedFile, match="ends after 392 of 400 bytes"):
        entry.read()


def test_files_by_index_then_single_then_none(tmp_path):
    assert tensor_files(tmp_path) == []
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert tensor_files(tmp_path) == [tmp_path / "model.safetensors"]
    for number in (1, 2):
        save_file({f"t{number}": torch.ones(1)}, tmp_path / f"model-{number}.safetensors")
    weight_map = {f"t{number}": f"model-{number}.safetensors" for number in (1, 2)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert tensor_files(tmp_path) == [tmp_path / "model-1.safetensors", tmp_path / "model-2.safetensors"]
    assert [entry.name for entry in iter_entries(tmp_path)] == ["t1", "t2"]


def test_metadata_is_what_transformers_asks_for(tmp_path):
    write(tmp_path / "f", {"a": torch.ones(1)}, {"format": "pt"})
    with safe_open(tmp_path / "f", "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": []}}']
)
def test_an_index_that_is_no_map_is_damage(tmp_path, content):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises(DamagedFile, match="is not a map of tensors to files") as error:
        tensor_files(tmp_path)
    assert str(index) in str(error.value)
