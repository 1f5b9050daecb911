"""What a container leaves free: files that it keeps cached do not count as used."""

from __future__ import annotations

import pytest

from hf_recipes.core.container_memory import container_memory, free_memory_bytes

GIB = 1 << 30


@pytest.fixture
def group(tmp_path, monkeypatch):
    files = (tmp_path / "memory.max", tmp_path / "memory.current", "inactive_file")
    monkeypatch.setattr("hf_recipes.core.container_memory.CGROUP_FILES", (files,))
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 4 * 3}\n")
    return tmp_path


def test_files_that_were_read_and_may_go_are_free(group):
    (group / "memory.stat").write_text(f"anon {GIB // 4}\nfile {GIB // 2}\ninactive_file {GIB // 2}\n")
    assert container_memory() == [(GIB, GIB // 4)]
    assert free_memory_bytes() == GIB // 4 * 3


@pytest.mark.parametrize("stat", [None, "anon x\n", "one two three\n", "file 3\n"])
def test_where_it_is_not_told_all_of_it_is_used(group, stat):
    if stat is not None:
        (group / "memory.stat").write_text(stat)
    assert container_memory() == [(GIB, GIB // 4 * 3)]
