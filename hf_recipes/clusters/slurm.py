"""A batch script for Slurm's `sbatch`.

Flags and variables: https://slurm.schedmd.com/sbatch.html, srun.html, scontrol.html (Slurm 22.05 and later).
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from hf_recipes.clusters.job import STOPPED, Job, node_command, place_flags
from hf_recipes.clusters.texts import check_line

FILE = "job.sbatch"
_SIGNAL_SECONDS = 120  # before the end of the job: a step and a save have to fit in
_FIRST_PORT, _PORTS = 10000, 20000  # below the ports that Linux gives out by itself (32768 and up)


@dataclass(frozen=True)
class SlurmOptions:
    """What a site wants to be told, in sbatch's own words; None leaves it to the site."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None


def slurm_script(job: Job, options: SlurmOptions, folder: str, working_directory: str) -> str:
    """The whole script.

    Args:
        job: what is run.
        options: of the site.
        folder: where the recipe and what belongs to it lie, seen from `working_directory`.
        working_directory: where relative paths begin, on every node.

    Raises:
        UserError: a line break in one of them, after which the rest would be taken for commands.
    """
    for what, text in (*vars(options).items(), ("gpu", job.accelerator), ("write", folder)):
        check_line(f"--{what}", text or "")
    check_line("output_dir", job.output_dir)
    check_line("The working directory", working_directory)
    directives = "".join(f"#SBATCH {line}\n" for line in _directives(job, options, working_directory))
    return f"#!/bin/bash\n{directives}{_HEAD}{_several(job)}\n{_step(job, folder)}\n{_TAIL}"


def log_file(job: Job) -> str:
    """Where the output of all starts goes, beside the run directory: a new run directory has to be empty."""
    parent = str(PurePosixPath(job.output_dir).parent).replace("%", "%%")  # which Slurm reads as one
    return str(PurePosixPath(parent) / f"{job.name}-%j.log")


def submit_lines(job: Job, folder: str, working_directory: str) -> tuple[str, ...]:
    """Slurm does not make the log's directory, and a job without one fails with no word."""
    parent = PurePosixPath(working_directory) / PurePosixPath(job.output_dir).parent
    return (f"mkdir -p {shlex.quote(str(parent))} && sbatch {shlex.quote(f'{folder}/{FILE}')}",)


def _directives(job: Job, options: SlurmOptions, working_directory: str) -> list[str]:
    signal_seconds = max(_SIGNAL_SECONDS, math.ceil(job.grace_seconds))
    lines = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1  # one launcher a node, which starts the node's ranks",
        f"--cpus-per-task={job.cores}",
    ]
    if job.devices:
        kind = f"{job.accelerator}:" if job.accelerator else ""
        lines.append(f"--gpus-per-node={shlex.quote(f'{kind}{job.devices}')}")
    if job.time_limit:
        lines.append(f"--time={job.time_limit}")
    lines += [f"--{name}={shlex.quote(value)}" for name, value in vars(options).items() if value is not None]
    return [
        *lines,
        "--requeue  # after a node failed or a job of higher priority came",
        f"--signal=USR1@{signal_seconds}  # to the step, not to this shell: the run saves and ends with {STOPPED}",
        "--open-mode=append  # one log for all starts",
        f"--output={shlex.quote(log_file(job))}",
        f"--chdir={shlex.quote(working_directory)}",
        "--export=ALL  # the environment of the shell that submits, with hf-recipes on its PATH",
    ]


_HEAD = """
# SIGTERM ends this shell, and is not trapped: a job that was cancelled must not come back.
set -u
"""


def _several(job: Job) -> str:
    if job.nodes == 1:
        return ""
    return f"""
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${{nodes%%$'\\n'*}}
port=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))  # two jobs that share a node do not meet
"""


def _step(job: Job, folder: str) -> str:
    """`srun` gives no CPUs on from the job's request by itself, and may be set to end a step with its first task, in
    which a node that has stopped would end one that still saves."""
    run = shlex.join(node_command(job, folder))
    step = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0'
    if job.nodes == 1:
        return f"{step} \\\n  {run}"
    place = " ".join(place_flags(job, '"$SLURM_NODEID"', '"$1"', '"$2"'))
    return f"""# shellcheck disable=SC2016  # each node's shell puts in its own number
{step} \\
  bash -c 'exec {_inside_quotes(run)} \\
    {place}' \\
  node "$first" "$port\""""


def _inside_quotes(text: str) -> str:
    return text.replace("'", "'\\''")


_TAIL = f"""code=$?
if [ "$code" -eq {STOPPED} ]; then  # stopped on request: the job goes back into the queue, and on from its checkpoint
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
