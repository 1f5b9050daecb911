"""A task for SkyPilot's managed jobs: machines of any cloud, spot ones with recovery.

Keys: https://docs.skypilot.co/en/latest/reference/yaml-spec.html; checked against the schema of SkyPilot 0.14.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from hf_recipes.clusters.job import STOPPED, Job, node_command, place_flags
from hf_recipes.clusters.pod import PORT
from hf_recipes.core.errors import UserError

FILE = "skypilot.yaml"
RUNS = "/runs"

# Our catalogue's keys → SkyPilot's names (its catalogue's common/accelerators.csv, v8).
ACCELERATORS: dict[str, str] = {
    "h100": "H100",
    "h100-nvl": "H100-NVL",
    "h200": "H200",
    "b200": "B200",
    "gh200": "GH200",
    "a100-40g": "A100",
    "a100-80g": "A100-80GB",
    "a800-80g": "A800",
    "l40s": "L40S",
    "l40": "L40",
    "l4": "L4",
    "a10": "A10",
    "a10g": "A10G",
    "a30": "A30",
    "a40": "A40",
    "rtx-a6000": "RTXA6000",
    "rtx-6000-ada": "RTX6000-Ada",
    "t4": "T4",
    "v100-16g": "V100",
    "v100-32g": "V100-32GB",
    "rtx-3060-12g": "RTX3060",
    "rtx-3090": "RTX3090",
    "rtx-4090": "RTX4090",
    "rtx-5090": "RTX5090",
    "mi300x": "MI300X",
}


@dataclass(frozen=True)
class SkyOptions:
    """What is rented, and where the runs are kept.

    Attributes:
        bucket: for `/runs`: a URL (``s3://…``, ``gs://…``), or the name of one that SkyPilot makes.
        accelerator: SkyPilot's name for the device; None on CPUs.
        spot: rent machines that may be taken away, for a part of the price.
        cloud: None: the cheapest that has them.
        region: of the cloud.
        package: what pip installs on each machine.
        max_failures: how often the job may fail (a stop on request or a lost machine is no failure).
    """

    bucket: str
    accelerator: str | None
    package: str
    spot: bool = False
    cloud: str | None = None
    region: str | None = None
    max_failures: int = 3


def sky_name(key: str) -> str:
    """SkyPilot's name for an accelerator of our catalogue.

    Raises:
        UserError: SkyPilot rents none of these.
    """
    if key not in ACCELERATORS:
        raise UserError(
            f"--gpu: SkyPilot's catalogue has no '{key}': take one of {', '.join(ACCELERATORS)} (`sky show-gpus` tells "
            "who rents it out)."
        )
    return ACCELERATORS[key]


def sky_task(job: Job, options: SkyOptions) -> str:
    """The task as YAML text; its `workdir` is the directory it is launched from, which holds the recipe."""
    task: dict[str, Any] = {
        "name": job.name,
        "num_nodes": job.nodes,
        "resources": _resources(job, options),
        "workdir": ".",
        "file_mounts": {RUNS: _bucket(options)},
        "setup": f"pip install {shlex.quote(options.package)}\n",
        "run": _run(job),
    }
    from hf_recipes.clusters.yaml_text import yaml_text

    return _HEAD + yaml_text(task)


def submit_lines(job: Job, folder: str) -> tuple[str, ...]:
    """A managed job recovers; `sky launch` alone does not."""
    return (f"cd {shlex.quote(folder)} && sky jobs launch -n {job.name} {FILE}",)


_HEAD = f"""# Start it from this directory with `sky jobs launch`: managed jobs alone recover.
# A machine that is taken away is replaced and does not count; so does exit code {STOPPED} (stopped on request, saved).
# {RUNS} is a bucket behind a local cache (MOUNT_CACHED): the plain MOUNT cannot append to a file, as event logs must.
# What was not uploaded when a machine went is lost; the run goes on from the newest checkpoint that is whole.
"""


def _resources(job: Job, options: SkyOptions) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if options.cloud:
        resources["cloud"] = options.cloud
    if options.region:
        resources["region"] = options.region
    if options.accelerator:
        resources["accelerators"] = f"{options.accelerator}:{job.devices}"
    else:
        resources["cpus"] = f"{job.cores}+"
    resources["use_spot"] = options.spot
    resources["job_recovery"] = {
        "max_restarts_on_errors": options.max_failures,
        "recover_on_exit_codes": [STOPPED],
    }
    return resources


def _bucket(options: SkyOptions) -> dict[str, str]:
    kept = {"source": options.bucket} if "://" in options.bucket else {"name": options.bucket}
    return {**kept, "mode": "MOUNT_CACHED"}


def _run(job: Job) -> str:
    """The machine tells how many devices it has: another number of them needs no other script."""
    command = shlex.join(node_command(job))
    if job.devices:
        command = command.removesuffix(str(job.ranks)) + '"$SKYPILOT_NUM_GPUS_PER_NODE"'
    if job.nodes == 1:
        return f"exec {command}\n"
    place = " ".join(place_flags(job, '"$SKYPILOT_NODE_RANK"', '"$first"', str(PORT)))
    return f'first=$(head -n 1 <<< "$SKYPILOT_NODE_IPS")\nexec {command} \\\n  {place}\n'
