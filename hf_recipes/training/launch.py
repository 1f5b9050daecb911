"""Start the ranks of a run from one process that stays: it validates before, and returns the run's own exit code after.

Launchers turn a rank's exit code 2 into a traceback and 1, and on a CPU quietly start one rank where two were asked.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hf_recipes.core.errors import UserError
from hf_recipes.core.events import read_events
from hf_recipes.core.files import write_json
from hf_recipes.core.log import logger
from hf_recipes.training.environment import LAUNCHED_BY_US, threads_per_rank, usable_cores

GRACE_SECONDS = 20
_HOW_TO_RESUME = "go on with --resume_from_checkpoint last"


def has_accelerator() -> bool:
    """Whether this machine has an NVIDIA or AMD device, without importing torch (seconds)."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def launch_command(module: str, arguments: Sequence[str], num_processes: int, config_file: str | None) -> list[str]:
    """The `accelerate launch` command line.

    Args:
        module: Python module the ranks run.
        arguments: Its arguments.
        num_processes: Number of ranks on this machine.
        config_file: An accelerate config file; it decides the rest when given.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    if config_file:
        command += ["--config_file", config_file]
    # Without it accelerate asks its own default config file, which may belong to another job.
    command += ["--num_processes", str(num_processes), "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no"]
    if num_processes > 1:
        command += ["--multi_gpu", "--main_process_port", "0"]
    return [*command, "-m", module, *arguments]


def launch_environment(num_processes: int) -> dict[str, str]:
    """The ranks' environment: CPU ranks are really CPU ranks, and share the cores evenly."""
    environment = {**os.environ, LAUNCHED_BY_US: str(os.getpid())}
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(usable_cores(), num_processes)))
    if not has_accelerator():
        environment["ACCELERATE_USE_CPU"] = "true"
        # Otherwise importing deepspeed, where it is installed, looks for devices and says so on every rank.
        environment.setdefault("DS_ACCELERATOR", "cpu")
    return environment


def launch(
    module: str, arguments: Sequence[str], output_dir: Path, *, num_processes: int = 1, config_file: str | None = None
) -> int:
    """Run `module` under `accelerate launch` and return the code from the run's status.json.

    Raises:
        UserError: accelerate is missing, or the config file is.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise UserError("accelerate is not installed: run `pip install accelerate`.")
    if config_file and not Path(config_file).is_file():
        raise UserError(f"--config_file: '{config_file}' does not exist: name an accelerate config file.")
    status = output_dir / "status.json"
    before = status.read_bytes() if status.is_file() else None
    status.unlink(missing_ok=True)
    command = launch_command(module, arguments, num_processes, config_file)
    try:
        launcher_code = run_group(command, launch_environment(num_processes))
    except SystemExit as leaving:
        if not status.is_file():
            _write_end(output_dir, f"terminated by a signal (exit code {leaving.code}); {_HOW_TO_RESUME}")
        raise
    if launcher_code and not status.is_file() and (output_dir / "events.jsonl").is_file():
        _write_end(output_dir, _last_words(output_dir) or f"the ranks ended without a word; {_HOW_TO_RESUME}")
    code = _exit_code(status, launcher_code)
    if before is not None and code == UserError.exit_code:
        status.write_bytes(before)  # refused use changes nothing about how the run here ended
    return code


def _last_words(output_dir: Path) -> str:
    """The last alarm of this attempt that a rank is gone: the ranks that lived may have had no time for more."""
    events = read_events(output_dir)
    attempt = max((event.get("attempt", 1) for event in events), default=1)
    gone = [event for event in events if event.get("verdict") == "gone" and event.get("attempt", 1) == attempt]
    return f"{gone[-1].get('message', '')}" if gone else ""


def _write_end(output_dir: Path, sentence: str) -> None:
    """Write the status that the ranks could not write, and say it last, below the launcher's traceback."""
    steps = [event["step"] for event in read_events(output_dir) if isinstance(event.get("step"), int)]
    status = {"code": 1, "sentence": sentence, "last_step": max(steps, default=0), "time": time.time()}
    with contextlib.suppress(OSError):
        write_json(output_dir / "status.json", status)
    logger.error("%s", sentence)


def run_group(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command as a process group of its own and return its exit code.

    SIGTERM and Ctrl-C are passed on to the whole group, ranks included: a launcher that dies of SIGTERM leaves its rank
    running. Ranks that have not left within `GRACE_SECONDS` are killed.
    """
    process = subprocess.Popen(command, env=environment, start_new_session=True)

    def terminate(signum: int, _frame: object) -> None:
        raise SystemExit(128 + signum)

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        return process.wait()
    except KeyboardInterrupt:
        _stop(process, signal.SIGINT)
        raise
    except SystemExit:
        _stop(process, signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def _stop(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    if not hasattr(os, "killpg"):  # Windows
        process.terminate()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)


def _exit_code(status: Path, launcher_code: int) -> int:
    try:
        code = int(json.loads(status.read_text(encoding="utf-8"))["code"])
    except (OSError, ValueError, KeyError):
        if launcher_code:
            logger.error("The run ended without a status (launcher exit code %d).", launcher_code)
        return 1 if launcher_code else 0
    return code if code or not launcher_code else 1
