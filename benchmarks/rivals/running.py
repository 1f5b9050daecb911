"""Run one contender as a whole process and read what the recorder wrote down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rivals.contenders import Contender, Job

LAST_STEPS = 5  # the training loss told is their mean


class RunFailed(Exception):
    """A contender did not come through; the message says where its output is."""


@dataclass(frozen=True)
class Measurement:
    """One run. Rates and sizes are over the steps after the warm-up; a step lasts from the end of one optimizer step to
    the end of the next, so data, logging, watching and saving are in it."""

    useful_per_cpu_second: float
    useful_per_wall_second: float
    step_seconds: list[float]
    step_cpu_seconds: list[float]
    useful_per_step: float
    labelled_per_step: float
    padding_share: float
    peak_mb: float
    loss: float
    whole_wall_seconds: float
    whole_cpu_seconds: float
    facts: dict[str, Any]
    output: str

    @property
    def step_median(self) -> float:
        return median(self.step_seconds)


def measure(contender: Contender, job: Job, out: Path, *, warmup: int, pad_id: int, timeout: float) -> Measurement:
    """Run `contender` in the fresh directory `out`, on `job.threads` cores.

    Raises:
        RunFailed: it exited otherwise than with 0, took longer than `timeout` seconds, or made too few steps.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    record = out / "steps.jsonl"
    environment = contender.process_environment(job, record, pad_id)
    for command in contender.preparations(job, out):
        run(command, out, "preparation.log", {**environment, "STEP_RECORD": ""}, job.threads, timeout)
    command = contender.prepare(job, out)
    wall, cpu = run(command, out, "output.log", environment, job.threads, timeout)
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    if len(lines) - 1 < job.steps:
        raise RunFailed(f"{max(0, len(lines) - 1)} of {job.steps} steps were recorded: see {out / 'output.log'}")
    facts, *steps = lines[: job.steps + 1]
    if contender.loss_is_sum:
        steps = [{**step, "loss": step["loss"] / step["labelled"]} for step in steps]
    return summarise(facts, steps, warmup, wall, cpu, str(out))


def summarise(
    facts: dict[str, Any], steps: list[dict[str, Any]], warmup: int, wall: float, cpu: float, output: str
) -> Measurement:
    """From the recorder's lines to rates."""
    first = max(1, warmup)
    counted = steps[first:]
    spans = list(zip(steps[first - 1 :], counted, strict=False))
    walls = [later["wall"] - earlier["wall"] for earlier, later in spans]
    cpus = [later["cpu"] - earlier["cpu"] for earlier, later in spans]
    useful = sum(step["useful"] for step in counted)
    return Measurement(
        useful_per_cpu_second=useful / sum(cpus),
        useful_per_wall_second=useful / sum(walls),
        step_seconds=walls,
        step_cpu_seconds=cpus,
        useful_per_step=useful / len(counted),
        labelled_per_step=fmean(step["labelled"] for step in counted),
        padding_share=1 - useful / sum(step["tokens"] for step in counted),
        peak_mb=steps[-1]["peak_mb"],
        loss=fmean(step["loss"] for step in steps[-LAST_STEPS:]),
        whole_wall_seconds=wall,
        whole_cpu_seconds=cpu,
        facts=facts,
        output=output,
    )


def run(
    command: list[str], directory: Path, log: str, environment: dict[str, str], threads: int, timeout: float
) -> tuple[float, float]:
    """Run a command on `threads` cores, its output into a file; return wall and CPU seconds, children included.

    Raises:
        RunFailed: as in `measure`.
    """
    started = time.perf_counter()
    before = os.times()
    with (directory / log).open("w") as output:
        try:
            finished = subprocess.run(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                preexec_fn=on_cores(threads),
            )
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"it was still running after {timeout:.0f} s: see {directory / log}") from error
    after = os.times()
    if finished.returncode:
        raise RunFailed(f"it ended with code {finished.returncode}: see {directory / log}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, cpu


def on_cores(threads: int) -> Callable[[], None] | None:
    """What a child calls to stay on `threads` cores, the last ones: the number of threads is then the same for those
    that set it themselves, and helper threads are not given away for free. None where the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    return lambda: os.sched_setaffinity(0, cores)
