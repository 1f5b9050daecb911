"""Scripts run by two real processes of one gloo group; import as `from two_ranks import run_two_ranks, leave_group`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def under_torchrun(script, *arguments):
    """Run a script with its arguments on two CPU ranks, to whatever end; the finished process."""
    above = [folder for folder in Path(script).resolve().parents if folder.is_relative_to(TESTS)]
    paths = os.pathsep.join(map(str, (TESTS.parent, TESTS, *above)))
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    command += map(str, arguments)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def run_two_ranks(script, directory, *arguments):
    """Run `script DIRECTORY *arguments` under torchrun; the contents of the rank0.json and rank1.json it leaves there.

    The script sees the modules beside it, and those of the folders above it up to tests/.
    """
    done = under_torchrun(script, directory, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((Path(directory) / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def leave_group(directory, seen):
    """The script's last act: write what this rank saw, and leave at once: the interpreter's own end, with a group left
    standing or a thread of torch still at work, was seen to abort ("terminate called without an active exception")."""
    import torch.distributed as dist

    (Path(directory) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
