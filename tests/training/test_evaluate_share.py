"""Processes that share an evaluation: their threads, and that none is left behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.evaluation.prepared import Choices
from hf_recipes.training import evaluate_share


def start(code):
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True)


def test_what_was_started_ends_when_the_next_cannot_be(tmp_path, monkeypatch):
    started = []

    def refuses_the_second(rank, gpus, cores):
        if rank:
            raise OSError(12, "Cannot allocate memory")
        started.append(start("import time; time.sleep(600)"))
        return started[0]

    monkeypatch.setattr(evaluate_share, "_start", refuses_the_second)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        evaluate_share.ask_in_processes(RunDirectory(tmp_path), Choices(), 2)
    assert started[0].wait(60) != 0


def test_one_that_ends_before_its_order_is_told_by_its_code(tmp_path, monkeypatch):
    def ends_at_once(rank, gpus, cores):
        process = start(f"import sys; sys.exit({3 + rank})")
        process.wait()
        return process

    monkeypatch.setattr(evaluate_share, "_start", ends_at_once)
    with pytest.raises(CheckFailed, match="process 0 with code 3, process 1 with code 4 did not finish"):
        evaluate_share.ask_in_processes(RunDirectory(tmp_path), Choices(), 2)


def test_the_cores_that_this_process_may_use_are_shared(tmp_path, monkeypatch):
    """A container with 6 of 64 cores: 32 threads each would stand in each other's way."""
    given = []

    def notes_cores(rank, gpus, cores):
        given.append(cores)
        return start("import sys; sys.stdin.read()")

    monkeypatch.setattr(evaluate_share, "_start", notes_cores)
    monkeypatch.setattr(evaluate_share, "threads_per_rank", lambda cores, ranks: cores // ranks)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    evaluate_share.ask_in_processes(RunDirectory(tmp_path), Choices(), 2)
    assert given == [3, 3]
