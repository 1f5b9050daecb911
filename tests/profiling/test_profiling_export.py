"""The trace file: whole, or a sentence that says why not."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sampled import sampled
from torch.profiler import ProfilerActivity, profile

from hf_recipes.core.errors import UserError
from hf_recipes.profiling.export import export_trace, staging_path


@pytest.fixture
def stopped():
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(50):
            torch.ones(3) + 1
    return profiler


def test_a_kept_trace_replaces_an_old_one_and_leaves_nothing_beside_it(stopped, tmp_path):
    kept = tmp_path / "trace.json"
    kept.write_text("old")
    trace = export_trace(stopped, staging_path(kept, tmp_path / "scratch"), kept)
    assert len([op for op in trace.ops if op.name == "aten::add"]) == 50
    assert json.loads(kept.read_text())["traceEvents"]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_without_a_place_to_keep_it_it_stays_in_the_scratch_file(stopped, tmp_path):
    scratch = tmp_path / "run" / "trace.rank0.json"
    assert staging_path(None, scratch) == scratch
    assert export_trace(stopped, scratch, None).ops
    assert scratch.exists()


@pytest.mark.skipif(os.name == "nt", reason="no pipes in the file system")
def test_a_pipe_is_written_to_and_not_replaced(stopped, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        export_trace(stopped, staging_path(pipe, tmp_path / "scratch.json"), pipe)
        assert json.loads(reader.stdout.read())["traceEvents"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


FULL_DEVICE = Path("/dev/full")


@pytest.mark.skipif(not FULL_DEVICE.is_char_device(), reason="no device that is always full")
def test_a_full_device_is_told(stopped, tmp_path):
    link = tmp_path / "full"  # a link is what would be replaced here, not the device
    link.symlink_to(FULL_DEVICE)
    with pytest.raises(UserError, match=r"^The trace cannot be written to '.*full': the disk is full; [^.]*\.$"):
        export_trace(stopped, staging_path(link, tmp_path / "scratch.json"), link)
    assert link.is_symlink() and FULL_DEVICE.is_char_device()


FULL = """
import errno, os, resource, sys
from pathlib import Path
import torch
from torch.profiler import ProfilerActivity, profile
from hf_recipes.core.errors import UserError
from hf_recipes.profiling.export import export_trace, staging_path
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(50):
        torch.ones(3) + 1
kept = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    export_trace(profiler, staging_path(kept, kept), kept)
except UserError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
@pytest.mark.parametrize("limit", sampled([1, 20_000], keep=[20_000]))
def test_a_trace_that_torch_cuts_without_a_word_is_told_with_the_systems_reason(tmp_path, limit):
    kept = tmp_path / "trace.json"
    command = [sys.executable, "-c", FULL, str(kept), str(limit)]
    environment = {**os.environ, "KINETO_LOG_LEVEL": "99"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"The trace cannot be written to '{kept}': File too large; name another --trace.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written_to_is_told(stopped, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    kept = closed / "trace.json"
    with pytest.raises(UserError, match="Permission denied"):
        export_trace(stopped, staging_path(kept, Path("unused")), kept)
