"""A training job as schedulers see it: how many machines, what runs on each, where it writes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from hf_recipes.core.errors import UserError

RECIPE, ACCELERATE, DEEPSPEED = "recipe.yaml", "accelerate.yaml", "deepspeed.json"
# A run that was told to stop, saved, and goes on when it is started again: `core.errors.Preempted`.
STOPPED = 75
# Between the end of a run's own patience and the scheduler's SIGKILL: the launcher waits 8 s for its ranks' last words.
_MARGIN_SECONDS = 10
_CORES_PER_DEVICE = 8
_NAME_LENGTH = 50  # Kubernetes allows 63 characters, and operators append the replica's kind and number


@dataclass(frozen=True)
class Job:
    """One training job.

    Attributes:
        name: of letters, digits and hyphens, as Kubernetes wants it (RFC 1035 label).
        output_dir: the run directory as every node sees it; the same after each start, so that the run goes on.
        verb: `sft` or `classify`.
        nodes: machines.
        devices: accelerators of each; 0 trains on CPUs.
        ranks: processes of each machine.
        accelerator: the kind of device as the user wrote it.
        cores: CPU cores of each machine.
        time_limit: of the whole job, as Slurm writes it (``24:00:00``).
        grace_seconds: what the run takes for its last step and save after SIGTERM (`preemption_grace_seconds`).
        configs: further files that the nodes need, by name: accelerate's config, DeepSpeed's.
    """

    name: str
    output_dir: str
    verb: str = "sft"
    nodes: int = 1
    devices: int = 1
    ranks: int = 1
    accelerator: str | None = None
    cores: int = _CORES_PER_DEVICE
    time_limit: str | None = None
    grace_seconds: float = 25.0
    configs: tuple[str, ...] = field(default=())

    @property
    def kill_seconds(self) -> int:
        """How long a scheduler must wait between SIGTERM and SIGKILL."""
        return math.ceil(self.grace_seconds) + _MARGIN_SECONDS


def default_cores(devices: int) -> int:
    """CPU cores of a machine with so many devices: enough to feed each, and what most clouds put beside one."""
    return _CORES_PER_DEVICE * max(1, devices)


def node_command(job: Job, folder: str = "") -> list[str]:
    """The command of a node but for its place among the others (see `place_flags`).

    Args:
        job: what is run.
        folder: where the node finds the recipe and what belongs to it; empty: its working directory.
    """
    command = ["hf-recipes", job.verb, "--config", _in(folder, RECIPE)]
    if ACCELERATE in job.configs:
        command += ["--config_file", _in(folder, ACCELERATE)]
    return [*command, "--num_processes", str(job.ranks)]


def place_flags(job: Job, rank: str, address: str, port: str) -> list[str]:
    """What a node of several is told of its place, in accelerate's flags; none for a single one.

    Args:
        job: what is run.
        rank: number of the node, as its scheduler gives it.
        address: of the first node.
        port: that the first node listens on.
    """
    if job.nodes == 1:
        return []
    return [
        *("--num_machines", str(job.nodes), "--machine_rank", rank),
        *("--main_process_ip", address, "--main_process_port", port),
    ]


def _in(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if folder else name


def job_name(text: str) -> str:
    """The nearest name to `text` that all schedulers take: lower case, letters, digits, hyphens, a letter first."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    named = words if words[:1].isalpha() else f"job-{words}"
    return named[:_NAME_LENGTH].strip("-")


def check_name(name: str) -> str:
    """Give back a name that the user wrote, where every scheduler takes it.

    Raises:
        UserError: it has other characters, or too many.
    """
    if name != job_name(name):
        raise UserError(
            f"--name: '{name[:80]}' is no name that schedulers take (small letters, digits, hyphens, a letter first, "
            f"{_NAME_LENGTH} characters): write {job_name(name)}."
        )
    return name


_TIMES = re.compile(r"(?:(?P<days>\d+)-)?(?P<fields>\d+(?::\d+){0,2})")


def time_seconds(text: str) -> int:
    """Seconds of a time as Slurm writes it: ``MM``, ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS``.

    Raises:
        UserError: it is none.
    """
    match = _TIMES.fullmatch(text)
    if match is None:
        raise UserError(f"--time: '{text[:40]}' is no time: write HH:MM:SS or DAYS-HH:MM:SS, as 24:00:00.")
    fields = [int(number) for number in match["fields"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = [*fields, 0, 0][:3]
    elif len(fields) == 3:
        hours, minutes, seconds = fields
    else:
        hours, minutes, seconds = 0, *[*fields, 0][:2]
    total = ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if total <= 0:
        raise UserError(f"--time: '{text}' is no time to train in: write HH:MM:SS, as 24:00:00.")
    return total


def check_time(text: str) -> str:
    """Give back a time that Slurm reads. Raises `UserError` where it does not."""
    time_seconds(text)
    return text
