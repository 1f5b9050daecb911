from __future__ import annotations

import errno
import hashlib
import json
import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.files import json_safe, read_json, sha256_of_file, staged_beside, write_json, write_text

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_json_safe_always_gives_strict_json_and_keeps_finite_values(value):
    text = json.dumps(json_safe(value), allow_nan=False)
    if "NaN" not in json.dumps(value) and "Infinity" not in json.dumps(value):
        assert json.loads(text) == value


def test_json_safe_writes_non_finite_numbers_as_text_wherever_they_are():
    value = {"loss": math.nan, "nested": [math.inf, (-math.inf, 1.5)], 3: {"b", "a"}, "path": Path("x") / "y"}
    expected = {"loss": "nan", "nested": ["inf", ["-inf", 1.5]], "3": ["a", "b"], "path": str(Path("x") / "y")}
    assert json_safe(value) == expected


def test_json_safe_unwraps_numpy_scalars():
    numpy = pytest.importorskip("numpy")
    assert json_safe({"a": numpy.float32(0.5), "b": numpy.int64(7), "c": numpy.float64("nan")}) == {
        "a": 0.5,
        "b": 7,
        "c": "nan",
    }


def test_write_json_reads_back_and_leaves_no_staged_file(tmp_path):
    file = tmp_path / "new" / "value.json"
    write_json(file, {"text": "größer", "n": 1})
    write_json(file, {"text": "größer", "n": 2})
    assert read_json(file) == {"text": "größer", "n": 2}
    assert "größer" in file.read_text(encoding="utf-8")
    assert list(file.parent.iterdir()) == [file]


def test_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path):
    file = tmp_path / "value.json"
    write_text(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "half \ud800")
    assert file.read_text() == "old"


def test_read_json_tells_a_missing_file_from_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "absent.json")
    (tmp_path / "cut.json").write_text('{"a": ')
    with pytest.raises(json.JSONDecodeError):
        read_json(tmp_path / "cut.json")


def _rewrite_for_ever(file: Path) -> None:
    number = 0
    while True:
        number += 1
        write_text(file, f"{number}\n" * 20_000)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_reader_and_a_kill_see_only_whole_files(tmp_path):
    file = tmp_path / "whole.txt"
    writer = multiprocessing.get_context("spawn").Process(target=_rewrite_for_ever, args=(file,))
    writer.start()
    versions = set()
    deadline = time.monotonic() + 60
    while len(versions) < 5 and time.monotonic() < deadline:
        if file.exists():
            lines = file.read_text().splitlines()
            assert len(lines) == 20_000 and len(set(lines)) == 1
            versions.add(lines[0])
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert len(versions) >= 5
    lines = file.read_text().splitlines()
    assert len(lines) == 20_000 and len(set(lines)) == 1


@pytest.mark.parametrize("size", [0, 1, 8 * 1024 * 1024, 8 * 1024 * 1024 + 1])
def test_sha256_of_file_is_that_of_its_bytes_around_the_buffer_size(tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "bytes").write_bytes(content)
    assert sha256_of_file(tmp_path / "bytes") == hashlib.sha256(content).hexdigest()


def test_a_link_stays_and_a_device_is_written_to(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"


def test_a_failed_write_leaves_no_staged_file_and_names_the_file(tmp_path, monkeypatch):
    """On a full disk, half a file would take the room that others need."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        write_text(tmp_path / "page.html", "text")
    assert error.value.filename == str(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_writers_with_the_same_process_id_take_different_names(tmp_path, monkeypatch):
    """As two containers do that share a directory."""
    monkeypatch.setattr("os.getpid", lambda: 2)
    names = {staged_beside(tmp_path / "blocks.arrow").name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith(".blocks.arrow.") and name.endswith(".tmp") for name in names)
