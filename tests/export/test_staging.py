"""The output is there whole or not at all, through errors, kills and overwriting."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys

import pytest
from export_helpers import tensors_of

from hf_recipes.core.errors import UserError
from hf_recipes.export.merge import merge_adapter
from hf_recipes.export.staging import _take_place, check_output, staged


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_name_is_taken_only_at_the_end(tmp_path):
    with staged(tmp_path / "out") as directory:
        (directory / "file").write_text("x")
        assert not (tmp_path / "out").exists()
        assert directory.parent == tmp_path  # same file system, so that the rename is one step
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["file"]


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), staged(tmp_path / "out") as directory:
        (directory / "file").write_text("x")
        raise RuntimeError
    assert names(tmp_path) == []


def test_an_existing_output_is_refused_and_replaced_only_when_the_new_one_is_whole(tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    (output / "config.json").write_text("x")
    with pytest.raises(UserError, match="exists: name another, or give --overwrite"):
        check_output(output, False)
    check_output(output, True)
    with pytest.raises(RuntimeError), staged(output):
        raise RuntimeError
    assert names(output) == ["config.json"]
    with staged(output) as directory:
        (directory / "new").write_text("y")
        assert names(output) == ["config.json"]
    assert names(tmp_path) == ["out"]
    assert names(output) == ["new"]


def test_what_is_no_model_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="holds no model that --overwrite could replace"):
        check_output(tmp_path, True)
    (tmp_path / "thesis.txt").unlink()
    check_output(tmp_path, True)  # empty


def test_an_output_that_cannot_be_replaced_stays(tmp_path):
    """The new one is gone (a cleaner of temporary files, a disk that went away) when its turn comes."""
    output = tmp_path / "out"
    output.mkdir()
    (output / "old").write_text("x")
    with pytest.raises(FileNotFoundError):
        _take_place(tmp_path / "gone", output)
    assert names(tmp_path) == ["out"]
    assert names(output) == ["old"]


def test_an_output_that_would_destroy_its_input_is_refused(tmp_path):
    adapter = tmp_path / "run" / "adapter"
    adapter.mkdir(parents=True)
    for output in (adapter, tmp_path / "run", tmp_path / "run" / "x" / ".."):
        with pytest.raises(UserError, match="which is read"):
            check_output(output, True, adapter)


def test_an_old_output_lost_on_its_way_out_is_put_back(tmp_path):
    """A kill between the two renames of an overwrite."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    old = tmp_path / f".out.{platform.node()}.{process.pid}.old"
    old.mkdir()
    (old / "file").write_text("x")
    with pytest.raises(RuntimeError), staged(tmp_path / "out"):
        raise RuntimeError
    assert names(tmp_path) == ["out"]


def test_what_belongs_to_a_running_merge_or_to_another_place_is_left(tmp_path, caplog):
    running = tmp_path / f".out.{platform.node()}.{os.getppid()}.tmp"
    elsewhere = tmp_path / ".out.another-machine.1.tmp"
    other_output = tmp_path / f".outer.{platform.node()}.1.tmp"
    for path in (running, elsewhere, other_output):
        path.mkdir()
    with staged(tmp_path / "out"):
        pass
    assert running.is_dir() and elsewhere.is_dir() and other_output.is_dir()
    assert caplog.text.count("belongs to another merge") == 2


# Stops in the middle of the first file and says so, then waits to be killed.
KILLED = """
import sys, time
from hf_recipes.export import stream
plain, count = stream._Writer.do, 0
def do(self, task):
    global count
    count += 1
    if count == 3:
        print("halfway", flush=True)
        time.sleep(600)
    return plain(self, task)
stream._Writer.do = do
from hf_recipes.export.merge import merge_adapter
merge_adapter(sys.argv[1], output=sys.argv[2], dtype="bf16", threads=1, overwrite=len(sys.argv) > 3)
"""


def kill_halfway(adapter, output, *more):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(adapter), str(output), *more], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "halfway\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()


@pytest.mark.slow
def test_m10_sigkill_midway_leaves_nothing_under_the_name_and_the_next_merge_cleans_up(tmp_path, adapter):
    output = tmp_path / "out"
    kill_halfway(adapter, output)
    assert not output.exists()
    (leftover,) = [name for name in names(tmp_path) if name.startswith(".out.")]
    assert any((tmp_path / leftover).glob("*.safetensors"))
    merge_adapter(adapter, output=output, dtype="bf16")
    assert names(tmp_path) == ["adapter", "base", "out"]
    whole = tensors_of(output)
    # A kill while overwriting leaves the old output as it was.
    kill_halfway(adapter, output, "overwrite")
    assert {name: tensor.tolist() for name, tensor in tensors_of(output).items()} == {
        name: tensor.tolist() for name, tensor in whole.items()
    }
    merge_adapter(adapter, output=output, dtype="bf16", overwrite=True)
    assert names(tmp_path) == ["adapter", "base", "out"]
