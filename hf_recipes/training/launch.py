"""Start the ranks of a run from one process that stays: it validates before, and returns the run's own exit code after.

Launchers turn a rank's exit code 2 into a traceback and 1, and on a CPU quietly start one rank where two were asked.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hf_recipes.checkpoints.preemption.stopped import HOW_TO_GO_ON, stopped_outside, unsaved_end
from hf_recipes.core.cores import usable_cores
from hf_recipes.core.errors import Preempted, UserError
from hf_recipes.core.events import absent_rank, read_events
from hf_recipes.core.files import read_json, write_json
from hf_recipes.core.log import logger
from hf_recipes.training.environment import LAUNCHED_BY_US, MACHINE_END, threads_per_rank
from hf_recipes.training.machines import ALONE, Machine, read_config
from hf_recipes.training.rank_group import GroupEnd, run_group

# What helps on devices by its makers' own documentation; whatever the user has set stays.
_FOR_DEVICES = {
    # "Memory management" in PyTorch's CUDA notes: for rows of changing length, whose blocks otherwise do not fit the
    # gaps that others left.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # NCCL's "Environment Variables": an error is explained when it comes, not only passed on.
    "NCCL_DEBUG": "WARN",
}
# Python's own errors are written down by the run itself.
_WITHOUT_A_WORD = (
    "the ranks ended without a word: killed, most often by the system for lack of memory (`dmesg | tail` says so), or "
    "crashed outside Python"
)


def has_accelerator() -> bool:
    """Whether this machine has an NVIDIA or AMD device, without importing torch (seconds)."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def launch_command(
    module: str, arguments: Sequence[str], num_processes: int, config_file: str | None, machine: Machine = ALONE
) -> list[str]:
    """The `accelerate launch` command line.

    Args:
        module: Python module the ranks run.
        arguments: Its arguments.
        num_processes: Number of ranks on this machine.
        config_file: An accelerate config file; it decides the rest when given.
        machine: This one among those of the job.
    """
    ranks = num_processes * machine.count
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(ranks)]
    if machine.count > 1:
        command += machine.flags()
    if config_file:  # a flag beside it would put aside what the file says of how the ranks share the work
        command += ["--config_file", config_file]
        if machine.count == 1 and needs_port(config_file):
            command += ["--main_process_port", "0"]
        return [*command, "-m", module, *arguments]
    # Without it accelerate asks its own default config file, which may belong to another job.
    command += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    if machine.count == 1:
        command += ["--num_machines", "1", *(["--main_process_port", "0"] if ranks > 1 else [])]
    return [*command, *(["--multi_gpu"] if ranks > 1 else []), "-m", module, *arguments]


def needs_port(config_file: str) -> bool:
    """Whether a config file for one machine leaves the port to accelerate, which always takes 29500: of two runs on a
    machine, the second may then join the first."""
    content = read_config(config_file)
    return bool(content) and content.get("main_process_port") is None


def launch_environment(num_processes: int) -> dict[str, str]:
    """The ranks' environment: CPU ranks are really CPU ranks, and share the cores evenly."""
    environment = {**os.environ, LAUNCHED_BY_US: str(os.getpid())}
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(usable_cores(), num_processes)))
    if not has_accelerator():
        environment["ACCELERATE_USE_CPU"] = "true"
        # Otherwise importing deepspeed, where it is installed, looks for devices and says so on every rank.
        environment.setdefault("DS_ACCELERATOR", "cpu")
        return environment
    for name, value in _FOR_DEVICES.items():
        environment.setdefault(name, value)
    return environment


def launch(
    module: str,
    arguments: Sequence[str],
    output_dir: Path,
    *,
    num_processes: int = 1,
    config_file: str | None = None,
    machine: Machine = ALONE,
    grace_seconds: float = 25.0,
) -> int:
    """Run `module` under `accelerate launch` and return the code from the run's status.json.

    Of several machines the first keeps the run directory; the others return what their own ranks were told.

    Args:
        module: Python module the ranks run.
        arguments: Its arguments.
        output_dir: The run directory.
        num_processes: Number of ranks on this machine.
        config_file: An accelerate config file.
        machine: This one among those of the job.
        grace_seconds: How long the ranks may live after SIGTERM (see `run_group`).

    Raises:
        UserError: accelerate is missing, or the config file is.
        KeyboardInterrupt: Ctrl-C, before the run could do anything about it.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise UserError("accelerate is not installed: run `pip install accelerate`.")
    if config_file and not Path(config_file).is_file():
        raise UserError(f"--config_file: '{config_file}' does not exist: name an accelerate config file.")
    command = launch_command(module, arguments, num_processes, config_file, machine)
    if machine.count > 1:
        _wait_for_machines(machine, num_processes)
    if machine.rank > 0:
        return _launch_beside(command, module, num_processes, grace_seconds)
    status = output_dir / "status.json"
    before = status.read_bytes() if status.is_file() else None
    status.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="hf_recipes_end_") as folder:
        told = Path(folder) / "end.json"  # where the run directory cannot be written to, or is another's
        environment = {**launch_environment(num_processes), MACHINE_END: str(told)}
        end = run_group(command, environment, module, grace_seconds)
        refused = read_json(told) if told.is_file() and not status.is_file() else None
    if refused is not None:
        if end.code:
            logger.error("%s", refused["sentence"])  # once more, below a launcher's traceback
        return int(refused["code"])
    if not status.is_file():
        _tell_end(output_dir, end)
    elif end.code:
        logger.warning("%s", read_json(status).get("sentence"))  # below a traceback
    code = _exit_code(status, end)
    if before is not None and code == UserError.exit_code:
        status.write_bytes(before)  # refused use changes nothing about how the run here ended
    return code


def _wait_for_machines(machine: Machine, num_processes: int) -> None:
    """Torch's launcher waits for the other machines in silence, and then ends with a traceback."""
    from hf_recipes.doctor.network.roll_call import JOB_PATIENCE_SECONDS, Place, machine_roll_call

    first, all_ranks = machine.rank * num_processes, machine.count * num_processes
    place = Place(first, all_ranks, num_processes, str(machine.main_ip), machine.main_port)
    machine_roll_call(place, JOB_PATIENCE_SECONDS)


def _launch_beside(command: Sequence[str], module: str, num_processes: int, grace_seconds: float) -> int:
    """Run the ranks of a machine that is not the first."""
    with tempfile.TemporaryDirectory(prefix="hf_recipes_end_") as folder:
        told = Path(folder) / "end.json"
        environment = {**launch_environment(num_processes), MACHINE_END: str(told)}
        end = run_group(command, environment, module, grace_seconds)
        if told.is_file():
            ended = read_json(told)
            logger.error("%s", ended["sentence"])
            return int(ended["code"])
    if end.stopped_by == "SIGINT":
        raise KeyboardInterrupt
    if end.stopped_by:
        return Preempted.exit_code
    if end.code:
        logger.error("The ranks of this machine ended (launcher exit code %d); the first machine says why.", end.code)
    return 1 if end.code else 0


def _tell_end(output_dir: Path, end: GroupEnd) -> None:
    """Write the status that the ranks could not write."""
    if end.stopped_by == "SIGINT":
        if output_dir.is_dir():
            _write_end(output_dir, 130, "interrupted")
        raise KeyboardInterrupt
    if end.stopped_by and end.killed:
        _write_end(output_dir, *unsaved_end(output_dir, f"stopped by {end.stopped_by}, and killed: {end.killed}"))
    elif end.stopped_by:
        _write_end(output_dir, Preempted.exit_code, stopped_outside(end.stopped_by))
    elif end.code and (output_dir / "events.jsonl").is_file():
        _write_end(output_dir, 1, _last_words(output_dir) or f"{_WITHOUT_A_WORD}; {HOW_TO_GO_ON}")


def _last_words(output_dir: Path) -> str:
    events = read_events(output_dir)
    return absent_rank(events, max((event.get("attempt", 1) for event in events), default=1))


def _write_end(output_dir: Path, code: int, sentence: str) -> None:
    """Write a status for the ranks, and say it last, below the launcher's traceback."""
    steps = [event["step"] for event in read_events(output_dir) if isinstance(event.get("step"), int)]
    status = {"code": code, "sentence": sentence, "last_step": max(steps, default=0), "time": time.time()}
    with contextlib.suppress(OSError):
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / "status.json", status)
    logger.error("%s", sentence)


def _exit_code(status: Path, end: GroupEnd) -> int:
    try:
        code = int(read_json(status)["code"])
    except (OSError, ValueError, KeyError):
        if end.code:
            logger.error("The run ended without a status (launcher exit code %d).", end.code)
        # Ranks that end well leave a status; without one they refused what they were given, and said why.
        return 1 if end.code else UserError.exit_code
    # A launcher that was told to stop fails, whatever its ranks made of it.
    return code if code or not end.code or end.stopped_by else 1
