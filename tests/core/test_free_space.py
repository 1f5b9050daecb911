"""A full disk is told before anything is written."""

from __future__ import annotations

from collections import namedtuple

import pytest

from hf_recipes.core import free_space
from hf_recipes.core.errors import UserError

usage = namedtuple("usage", "total used free")


@pytest.fixture
def small_disk(monkeypatch):
    monkeypatch.setattr(free_space.shutil, "disk_usage", lambda place: usage(10**12, 0, 10**9))


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, small_disk):
    output = tmp_path / "deep" / "er" / "out"
    free_space.check_free_space(output, 8 * 10**8, "The merged model needs", "make room")
    with pytest.raises(UserError) as told:
        free_space.check_free_space(output, 2 * 10**9, "The merged model needs", "make room")
    assert str(told.value) == f"The merged model needs 2.00 GB, but {tmp_path} has 1.00 GB free: make room."
    assert not (tmp_path / "deep").exists()


def test_a_little_more_is_wanted_than_what_is_written(tmp_path, small_disk):
    with pytest.raises(UserError, match="but the cache has"):
        free_space.check_free_space(tmp_path, 10**9 - 1, "It is", "make room", place="the cache")


def test_directory_bytes_are_those_of_the_files_below(tmp_path):
    model = tmp_path / "model"
    (model / "a").mkdir(parents=True)
    (model / "one").write_bytes(bytes(10))
    (model / "a" / "two").write_bytes(bytes(5))
    (tmp_path / "blob").write_bytes(bytes(100))
    (model / "weights").symlink_to(tmp_path / "blob")  # as in the Hub's cache
    (model / "gone").symlink_to(tmp_path / "nowhere")
    assert free_space.directory_bytes(model) == 115
    assert free_space.directory_bytes(tmp_path / "c") == 0
