"""A driver for Ray Train: one worker a node, each of which starts the node's ranks as every other scheduler does.

A worker for each rank would train inside Ray's own threads, which hear no signals, and would lose what accelerate's
launcher sets up for FSDP and DeepSpeed. Written for Ray 2.60.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from hf_recipes.clusters.job import RECIPE, STOPPED, Job, node_command, place_flags

FILE = "ray_train.py"


@dataclass(frozen=True)
class RayOptions:
    """How often Ray starts the workers again: after a lost node, a failure, or a stop on request; -1: always."""

    max_failures: int = 3


def ray_script(job: Job, options: RayOptions) -> str:
    """The driver as Python text; it is run from the directory that holds the recipe."""
    resources = {"CPU": job.cores} | ({"GPU": job.devices} if job.devices else {})
    place = place_flags(job, "{rank}", "{address}", "{port}")
    return _SCRIPT.format(
        files=_literal([RECIPE, *job.configs]),
        command=_literal(node_command(job)),
        place=_literal(place),
        nodes=job.nodes,
        use_gpu=job.devices > 0,
        resources=resources,
        name=_text(job.name),
        output=_text(job.output_dir),
        patience=2 * job.kill_seconds,
        storage=_text(str(PurePosixPath(job.output_dir).parent / "ray")),
        max_failures=options.max_failures,
        stopped=STOPPED,
    )


def submit_lines(folder: str) -> tuple[str, ...]:
    """The directory travels to the cluster; RAY_ADDRESS, or --address, says which one."""
    return (f"ray job submit --working-dir {shlex.quote(folder)} -- python {FILE}",)


def _literal(words: list[str]) -> str:
    """A list as our formatter would write it."""
    return "[" + ", ".join(map(_text, words)) + "]"


def _text(text: str) -> str:
    """A string of Python: JSON's escapes mean the same there, as long as other letters stand as they are."""
    return json.dumps(text, ensure_ascii=False)


_SCRIPT = '''"""Trains by the recipe beside it on a Ray cluster: one worker a node, which starts the node's ranks."""

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import ray.train
import torch.distributed
from hf_recipes.checkpoints.lock import TakenDirectory, release_lock, take_lock
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

FILES = {files}
COMMAND = {command}
PLACE = {place}
OUTPUT = {output}
PATIENCE_SECONDS = {patience}


def meeting_point() -> tuple[str, int]:
    """Address and a free port of the first node, told to all over the group of workers that Ray made."""
    with socket.socket() as free:
        free.bind(("", 0))
        told = [(ray.util.get_node_ip_address(), free.getsockname()[1])]
    torch.distributed.broadcast_object_list(told, src=0)
    return told[0]


def wait_for_last_start() -> None:
    """The ranks of a start that Ray has ended may still be saving."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            take_lock(OUTPUT)
        except TakenDirectory:
            time.sleep(1)
        else:
            release_lock(OUTPUT)
            return


def end_with_worker() -> None:
    """A worker that Ray kills must not leave ranks behind: SIGTERM, after which the run saves (Linux's prctl)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def train_node(texts: dict[str, str]) -> None:
    rank = ray.train.get_context().get_world_rank()
    if rank == 0:  # the others wait for it at the meeting point
        wait_for_last_start()
    address, port = meeting_point()
    place = [word.format(rank=rank, address=address, port=port) for word in PLACE]
    # Ray and torch tell a worker's place in variables that are not its ranks'.
    named = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    environment = {{name: value for name, value in os.environ.items() if name not in named}}
    # Ray puts its workers into a directory of their own, where the job's files are not.
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        code = subprocess.run(
            [*COMMAND, *place], cwd=folder, env=environment, preexec_fn=end_with_worker, check=False
        ).returncode
    if code == {stopped}:
        raise RuntimeError("The run was stopped on request and has saved: it goes on when it is started again.")
    if code:
        raise RuntimeError(f"The run ended with exit code {{code}}: its output above says why.")


def main() -> None:
    here = Path(__file__).parent
    TorchTrainer(
        train_node,
        train_loop_config={{name: (here / name).read_text(encoding="utf-8") for name in FILES}},
        torch_config=TorchConfig(backend="gloo"),  # for the meeting point alone: the ranks choose their own
        scaling_config=ScalingConfig(num_workers={nodes}, use_gpu={use_gpu}, resources_per_worker={resources}),
        run_config=RunConfig(
            name={name},
            storage_path=os.path.abspath({storage}),
            failure_config=FailureConfig(max_failures={max_failures}),
        ),
    ).fit()


if __name__ == "__main__":
    main()
'''
