"""Runs trials and judges them: in this process, or on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fault_runs import Fault, Outcome, judge
from trial_runs import Run, alarms, best_evaluation, train

SCRIPT = Path(__file__).with_name("two_rank_trial.py")


def try_fault(fault: Fault, seed: int, execute: Callable[[Run, Path, int], None]) -> Outcome:
    """Run with the fault; whatever the run ends with, what was told by then counts."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        execute(fault.run, directory, seed)
        starts = best_evaluation(directory) if fault.starts == 0 else fault.starts
        return judge(fault, alarms(directory), starts)


def false_alarms(run: Run, seed: int, execute: Callable[[Run, Path, int], None]) -> list[tuple[int, str, str]]:
    """Run without a fault; what was told all the same."""
    with tempfile.TemporaryDirectory() as name:
        execute(run, Path(name), seed)
        return alarms(Path(name))


def here(run: Run, directory: Path, seed: int) -> None:
    """One rank: this process."""
    train(run, directory, seed)


def on_two_ranks(run: Run, directory: Path, seed: int) -> None:
    """Two processes of a gloo group; a rank that dies is part of some trials."""
    tests = SCRIPT.parents[1]
    paths = os.pathsep.join(map(str, (tests.parent, tests, SCRIPT.parent)))
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(SCRIPT)]
    subprocess.run(
        [*command, str(directory), str(seed), run.name], env=environment, capture_output=True, timeout=300, check=False
    )
