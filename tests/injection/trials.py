"""Runs trials and judges them: in this process, or on two ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from fault_runs import Fault, Outcome, judge
from trial_runs import Run, alarms, best_evaluation, train
from two_ranks import under_torchrun

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
    under_torchrun(SCRIPT, directory, seed, run.name)
