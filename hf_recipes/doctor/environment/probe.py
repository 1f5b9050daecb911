"""Starts `hf_recipes.doctor.environment.stages` in a process of its own, and takes what it came to tell.

Importing torch takes seconds and, in a broken installation, may crash or hang: a process that does either is a finding
and not the doctor's end. Each stage's result comes as one line, so what came before a crash is kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import IO, Any

from hf_recipes.doctor.environment.facts import Probe

_MODULE = "hf_recipes.doctor.environment.stages"
_LAST_WORDS = 300


class RunningProbe:
    """The process while it runs; `result` waits for it."""

    def __init__(self, command: list[str] | None = None) -> None:
        environment = {**os.environ, "CUDA_MODULE_LOADING": "LAZY", "BITSANDBYTES_NOWELCOME": "1"}
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", _MODULE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )

    def result(self, patience_seconds: float) -> Probe:
        """What it told; stopped when its time is up."""
        try:
            told, complaints = self._process.communicate(timeout=patience_seconds)
            late = False
        except subprocess.TimeoutExpired:
            self._process.kill()
            told, complaints = self._process.communicate()
            late = True
        began, results = _read(told)
        open_stage = next((stage for stage in began if stage not in results), None)
        if late:
            return Probe(results, open_stage or "the start", f"it was not done after {patience_seconds:g} s")
        code = self._process.returncode
        if code == 0 and open_stage is None:
            return Probe(results)
        return Probe(results, open_stage or "the end", _how(code, complaints))

    def stop(self) -> None:
        """End it, if it has not ended, and let go of its pipes."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            _close(pipe)


def _close(pipe: IO[str] | None) -> None:
    if pipe is not None and not pipe.closed:
        pipe.close()


def _read(told: str) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Stages that began, in order, and the results of those that ended; other words of libraries are passed over."""
    began: list[str] = []
    results: dict[str, dict[str, Any]] = {}
    for line in told.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if not isinstance(value, dict) or not isinstance(value.get("stage"), str):
            continue
        if isinstance(value.get("result"), dict):
            results[value["stage"]] = value["result"]
        else:
            began.append(value["stage"])
    return began, results


def _how(code: int, complaints: str) -> str:
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    last = f": {lines[-1][:_LAST_WORDS]}" if lines else ""
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        return f"the process was ended by {name}{last}"
    return f"the process ended with exit code {code}{last}"
