"""An evaluation's rows shared by several processes, each with a model of its own: an order as JSON on stdin.

Nothing passes between them but files: each takes every N-th row that is not answered yet and appends its answers to its
own file, so one that dies takes only its batch with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_recipes.core.cores import usable_cores
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.evaluation.asking import Share
from hf_recipes.evaluation.prepared import Choices
from hf_recipes.training.environment import threads_per_rank


def ask_in_processes(run: RunDirectory, choices: Choices, count: int) -> None:
    """Start `count` processes, wait for all of them, and say which failed.

    Raises:
        CheckFailed: one or more did not end well; what they answered is kept.
    """
    import torch

    gpus = torch.cuda.device_count()
    if 0 < gpus < count:
        logger.warning(f"{count} processes share {gpus} GPU(s): each loads a model of its own there.")
    cores = threads_per_rank(usable_cores(), count)
    if not gpus:
        logger.info(f"{count} processes with {cores} thread(s) each; the latency is measured while all of them run.")
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(count):
            processes.append(_start(rank, gpus, cores))
            _order(processes[-1], run, choices, Share(rank, count))
        codes = [process.wait() for process in processes]
    finally:  # an interrupt, or one that cannot be started, must not leave them behind
        for process in processes:
            if process.poll() is None:
                process.terminate()
    if failed := [f"process {rank} with code {code}" for rank, code in enumerate(codes) if code]:
        raise CheckFailed(f"{', '.join(failed)} did not finish: see above; the same command goes on from there.")


def _start(rank: int, gpus: int, cores: int) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(cores))
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        environment["CUDA_VISIBLE_DEVICES"] = visible[rank % gpus]
    command = [sys.executable, "-m", "hf_recipes.training.evaluate_share"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr, env=environment, text=True)


def _order(process: subprocess.Popen[str], run: RunDirectory, choices: Choices, share: Share) -> None:
    # the gate is the parent's
    order = {"run": str(run.path), "choices": {**asdict(choices), "gate": []}, "share": asdict(share)}
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # one that is gone already says so by its code
        process.stdin.write(json.dumps(order))


def ask_order(order: dict[str, Any]) -> None:
    """What one process does with its order."""
    from hf_recipes.evaluation.run import ask_share
    from hf_recipes.training.evaluation_loaders import loaders

    against = order["choices"]["against"]
    choices = Choices(**{**order["choices"], "gate": (), "against": None if against is None else tuple(against)})
    ask_share(RunDirectory(Path(order["run"])), loaders(), choices, Share(**order["share"]))


def _end_with(parent: int) -> None:
    """Nobody would read what a process answers whose parent was killed; another one may ask the same by now."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    try:
        ask_order(json.load(sys.stdin))
    except KeyboardInterrupt:  # the parent says so
        sys.exit(130)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(UserError.exit_code)
