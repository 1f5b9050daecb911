"""Any damage of a kind, at any place: hypothesis chooses."""

from __future__ import annotations

import json
import shutil
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from hf_recipes.checkpoints.verification.scan import list_files
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.tensors import BITS_PER_ELEMENT, DamagedFile, read_header

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def proven(written_full, tmp_path_factory):
    """A full checkpoint with its manifest, put back by each trial."""
    return shutil.copytree(written_full / "checkpoint-2", tmp_path_factory.mktemp("proven") / "checkpoint-2")


@pytest.fixture(scope="module")
def bare(proven, tmp_path_factory):
    """The same without a manifest."""
    directory = shutil.copytree(proven, tmp_path_factory.mktemp("bare") / "checkpoint-2")
    (directory / "manifest.json").unlink()
    (directory / "verified.json").unlink()
    return directory


def is_found(directory, file, level):
    return any(problem.file == file.name for problem in verify_checkpoint(directory, level).problems)


@relaxed
@given(data=st.data())
def test_any_flipped_bit_of_a_checkpoint_with_a_manifest_is_found(proven, data):
    file = proven / data.draw(st.sampled_from(list_files(proven)))
    before = file.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(before) - 1))
    after = bytearray(before)
    after[bit // 8] ^= 1 << bit % 8
    try:
        file.write_bytes(after)
        assert is_found(proven, file, "content")
    finally:
        file.write_bytes(before)


@relaxed
@given(data=st.data())
def test_any_truncation_is_found_by_structure_alone_even_without_a_manifest(bare, data):
    names = [name for name in list_files(bare) if name.endswith((".safetensors", ".json", ".pt", ".pth", ".bin"))]
    file = bare / data.draw(st.sampled_from(names))
    before = file.read_bytes()
    after = before[: data.draw(st.integers(0, len(before) - 1))]
    try:
        file.write_bytes(after)
        assert is_found(bare, file, "structure") or (file.suffix == ".json" and json.loads(after) == json.loads(before))
    finally:
        file.write_bytes(before)


def header_files():
    """Headers near to sound ones: numbers, dtypes and JSON as they come, with as many bytes as they might describe."""
    number = st.one_of(st.integers(-2, 9), st.sampled_from([2**31, 2**63, 2**64, 2**70]), st.just(1.0), st.booleans())
    spec = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from([*BITS_PER_ELEMENT, "F99"]),
            "shape": st.lists(number, max_size=3),
            "data_offsets": st.tuples(st.integers(-1, 40), st.integers(-1, 80)),
        }
    )
    metadata = st.fixed_dictionaries({}, optional={"__metadata__": st.dictionaries(st.text(max_size=2), st.text())})
    tensors = st.dictionaries(st.text(max_size=2), spec, max_size=3)
    return st.tuples(st.builds(lambda a, b: {**a, **b}, metadata, tensors), st.integers(0, 80))


def sound_files():
    """Sound headers of any dtypes and shapes."""
    dtypes = sorted(BITS_PER_ELEMENT)
    shapes = st.lists(st.integers(0, 4), max_size=3)

    def build(specs):
        header, at = {}, 0
        for number, (dtype, shape) in enumerate(specs):
            bits = BITS_PER_ELEMENT[dtype]
            for size in shape:
                bits *= size
            if bits % 8:
                continue
            header[str(number)] = {"dtype": dtype, "shape": shape, "data_offsets": (at, at + bits // 8)}
            at += bits // 8
        return header, at

    return st.lists(st.tuples(st.sampled_from(dtypes), shapes), max_size=4).map(build)


def ours(file):
    try:
        return {name: (entry.dtype, list(entry.shape)) for name, entry in read_header(file)[0].items()}
    except DamagedFile:
        return None


def theirs(file):
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
            return {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except SafetensorError:
        return None


@settings(max_examples=400, deadline=None)
@given(st.one_of(header_files(), sound_files()))
def test_a_header_is_sound_to_us_if_it_is_to_safetensors(tmp_path_factory, made):
    header, data = made
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    file = tmp_path_factory.getbasetemp() / "made.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    assert ours(file) == theirs(file)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_changed_byte_of_a_header_never_makes_it_sound_to_us_alone(tmp_path_factory, data):
    from safetensors.torch import save

    content = bytearray(save({"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.uint8)}))
    length = 8 + int.from_bytes(content[:8], "little")
    content[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.getbasetemp() / "changed.safetensors"
    file.write_bytes(content)
    assert ours(file) is None or ours(file) == theirs(file)
