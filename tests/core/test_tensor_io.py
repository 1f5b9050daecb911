"""Reads, writes and copies at a place in a file."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.tensor_io import OpenFiles, copy_range, read_into, write_from


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_range_is_copied_to_its_place_and_nothing_else_changes(tmp_path_factory, content, data):
    directory = tmp_path_factory.mktemp("copy")
    start = data.draw(st.integers(0, len(content)))
    count = data.draw(st.integers(0, len(content) - start))
    place = data.draw(st.integers(0, 50))
    (directory / "a").write_bytes(content)
    (directory / "b").write_bytes(b"\xee" * 400)
    with OpenFiles() as sources, OpenFiles(os.O_WRONLY) as targets:
        copy_range(sources[directory / "a"], start, targets[directory / "b"], place, count)
    expected = b"\xee" * place + content[start : start + count]
    assert (directory / "b").read_bytes() == expected + b"\xee" * (400 - len(expected))


@pytest.mark.parametrize("error", [errno.EXDEV, errno.ENOSYS])
def test_where_the_kernel_cannot_copy_the_bytes_go_through_memory(tmp_path, monkeypatch, error):
    def cannot(*_args):
        raise OSError(error, "no")

    monkeypatch.setattr(os, "copy_file_range", cannot)
    content = os.urandom(3_000_001)
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").touch()
    with OpenFiles() as sources, OpenFiles(os.O_WRONLY) as targets:
        copy_range(sources[tmp_path / "a"], 1, targets[tmp_path / "b"], 0, 3_000_000)
    assert (tmp_path / "b").read_bytes() == content[1:]


def test_a_full_disk_is_not_taken_for_a_kernel_that_cannot_copy(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "copy_file_range", full)
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").touch()
    with OpenFiles() as sources, OpenFiles(os.O_WRONLY) as targets, pytest.raises(OSError, match="no space"):
        copy_range(sources[tmp_path / "a"], 0, targets[tmp_path / "b"], 0, 1)


def test_a_file_that_ends_too_early_is_an_error(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").touch()
    with OpenFiles() as sources, OpenFiles(os.O_WRONLY) as targets:
        with pytest.raises(EOFError, match="3 bytes too early"):
            read_into(sources[tmp_path / "a"], 2, memoryview(bytearray(6)))
        with pytest.raises(EOFError):
            copy_range(sources[tmp_path / "a"], 2, targets[tmp_path / "b"], 0, 6)
        write_from(targets[tmp_path / "b"], 3, memoryview(b"ab"))
    assert (tmp_path / "b").read_bytes().endswith(b"ab")


def test_descriptors_are_closed_at_the_end(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    with OpenFiles() as files:
        descriptor = files[tmp_path / "a"]
        assert files[tmp_path / "a"] == descriptor
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)
