"""What each scheduler makes of a job: its file, where runs are kept there, and what the user has to know."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.cli.launch_flags import whole_number
from hf_recipes.clusters import kubernetes, pod, ray, skypilot, slurm
from hf_recipes.clusters.job import Job
from hf_recipes.clusters.notices import NOTICES
from hf_recipes.clusters.places import inside, shared
from hf_recipes.core.errors import UserError

_MAX_FAILURES = 3


@dataclass(frozen=True)
class Target:
    """One scheduler.

    Attributes:
        file: the name of its job file.
        folder: where a node finds the recipe, from the directory that the user writes to.
        output: the run directory on its machines, from the one that was asked for.
        text: the job file, from the options, the job, and the files beside it by name.
        submit: the lines that start it, from the job and the directory.
        keys: recipe keys that it wants, from the options; the user's own win.
        data: where paths of the recipe are looked for, in words.
        same_files: whether a path of this machine means the same there.
    """

    file: str
    folder: Callable[[str], str]
    output: Callable[[str], str]
    text: Callable[[argparse.Namespace, Job, Mapping[str, str]], str]
    submit: Callable[[Job, str], tuple[str, ...]]
    keys: Callable[[argparse.Namespace], dict[str, Any]]
    data: str
    same_files: bool = False


def _nothing(_options: argparse.Namespace) -> dict[str, Any]:
    return {}


def _failures(options: argparse.Namespace, least: int = 0) -> int:
    given = whole_number(options, "max-failures", least)
    return _MAX_FAILURES if given is None else given


def _slurm_text(options: argparse.Namespace, job: Job, _files: Mapping[str, str]) -> str:
    site = slurm.SlurmOptions(options.partition, options.account, options.qos, options.constraint)
    return slurm.slurm_script(job, site, options.write.rstrip("/"), str(Path.cwd()))


def _kubernetes_text(options: argparse.Namespace, job: Job, files: Mapping[str, str]) -> str:
    if not options.image:
        raise UserError("--image: name a container image with hf_recipes installed; its nodes start nothing else.")
    if not options.pvc:
        raise UserError("--pvc: name a volume claim for runs and data: without one a run is lost with its pod.")
    cluster = pod.KubernetesOptions(
        image=options.image,
        claim=options.pvc,
        namespace=options.namespace,
        kind=options.kind,
        node_selector=_labels(options.node_selector),
        memory=options.memory,
        max_failures=_failures(options),
    )
    return kubernetes.kubernetes_manifest(job, cluster, files)


def _labels(text: str | None) -> dict[str, str]:
    """Of a text whose form was looked at with the flags."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair]
    return {name: value for name, _, value in pairs}


def _kubernetes_keys(_options: argparse.Namespace) -> dict[str, Any]:
    """Kubernetes waits as long as it is told to, which a save of a large model may need."""
    return {"preemption_grace_seconds": 110}


def _sky_text(options: argparse.Namespace, job: Job, _files: Mapping[str, str]) -> str:
    if not options.bucket:
        raise UserError("--bucket: name a bucket for the runs: without one a run is lost with its machine.")
    if job.devices and job.accelerator is None:
        raise UserError("--gpu: say which kind to rent, as in --gpu h100; --gpus 0 rents CPUs.")
    task = skypilot.SkyOptions(
        bucket=options.bucket,
        accelerator=_sky_name(job),
        package=options.package or _this_version(),
        spot=options.spot,
        cloud=options.cloud,
        region=options.region,
        max_failures=_failures(options),
    )
    return skypilot.sky_task(job, task)


def _sky_name(job: Job) -> str | None:
    from hf_recipes.core.accelerators import find_accelerator

    return skypilot.sky_name(find_accelerator(job.accelerator).key) if job.devices and job.accelerator else None


def _this_version() -> str:
    from hf_recipes.core.version import __version__

    return f"hf-recipes=={__version__}"


def _sky_keys(options: argparse.Namespace) -> dict[str, Any]:
    """A spot machine ends without a signal; those of three clouds can be asked before."""
    notice = NOTICES.get((options.cloud or "").lower()) if options.spot else None
    return {"preemption_command": notice} if notice else {}


def _ray_text(options: argparse.Namespace, job: Job, _files: Mapping[str, str]) -> str:
    return ray.ray_script(job, ray.RayOptions(_failures(options, least=-1)))


TARGETS: dict[str, Target] = {
    "slurm": Target(
        file=slurm.FILE,
        folder=lambda write: write,
        output=lambda path: path,
        text=_slurm_text,
        submit=lambda job, write: slurm.submit_lines(job, write, str(Path.cwd())),
        keys=_nothing,
        data="every node has to see them under these paths",
        same_files=True,
    ),
    "k8s": Target(
        file=kubernetes.FILE,
        folder=lambda _write: pod.CONFIG_FOLDER,
        output=lambda path: inside(pod.WORK_FOLDER, path, "the volume claim"),
        text=_kubernetes_text,
        submit=lambda _job, write: kubernetes.submit_lines(write),
        keys=_kubernetes_keys,
        data=f"put them into the volume claim, which is {pod.WORK_FOLDER} there, and where relative paths begin",
    ),
    "skypilot": Target(
        file=skypilot.FILE,
        folder=lambda _write: "",
        output=lambda path: inside(skypilot.RUNS, path, "the bucket"),
        text=_sky_text,
        submit=skypilot.submit_lines,
        keys=_sky_keys,
        data=f"put them beside the recipe, where relative paths begin, or into the bucket ({skypilot.RUNS} there)",
    ),
    "ray": Target(
        file=ray.FILE,
        folder=lambda _write: "",
        output=shared,
        text=_ray_text,
        submit=lambda _job, write: ray.submit_lines(write),
        keys=_nothing,
        data="put them on the file system that all nodes share, and write absolute paths",
    ),
}
