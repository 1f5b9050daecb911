"""The pod that trains, the same under every Kubernetes operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.clusters.job import Job, node_command, place_flags

CONFIG_FOLDER = "/etc/hf-recipes"
WORK_FOLDER = "/workspace"
PORT = 29500
_SHARED_MEMORY = "16Gi"  # an upper limit: data loaders and NCCL take some of it, and the default is 64 MiB
# What a node's device plugin calls its devices, by how our catalogue's keys begin; NVIDIA's where none fits.
_DEVICES = {"mi": "amd.com/gpu", "gaudi": "habana.ai/gaudi"}


@dataclass(frozen=True)
class KubernetesOptions:
    """What only the cluster's owner knows.

    Attributes:
        image: with hf_recipes installed.
        claim: a PersistentVolumeClaim that all nodes can write (ReadWriteMany where there are several); paths of the
            recipe begin in it.
        namespace: None: the one that kubectl is set to.
        kind: ``job``, ``pytorchjob``, ``trainjob``; None: by the number of nodes.
        node_selector: labels of the machines that are taken.
        memory: of each node, as Kubernetes writes it (``64Gi``); None: no request.
        max_failures: how often the job may fail (a stop on request is no failure).
    """

    image: str
    claim: str
    namespace: str | None = None
    kind: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    memory: str | None = None
    max_failures: int = 3


@dataclass(frozen=True)
class Place:
    """How a pod learns its place: Kubernetes puts a variable's value where ``$(NAME)`` stands in a command."""

    rank: str
    address: str
    port: str


def pod_spec(job: Job, options: KubernetesOptions, container: str, place: Place | None, **more: Any) -> dict[str, Any]:
    """The `spec` of the pod.

    Args:
        job: what is run.
        options: of the cluster.
        container: its name, which operators look for.
        place: of the pod among several; None for a single one.
        more: further keys (`restartPolicy`, `subdomain`).
    """
    spec: dict[str, Any] = {
        **more,
        "terminationGracePeriodSeconds": job.kill_seconds,
        "containers": [_container(job, options, container, place)],
        "volumes": [
            {"name": "recipe", "configMap": {"name": config_name(job)}},
            {"name": "workspace", "persistentVolumeClaim": {"claimName": options.claim}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}},
        ],
    }
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    return spec


def config_name(job: Job) -> str:
    """Of the ConfigMap that holds the recipe."""
    return f"{job.name}-recipe"


def device_resource(accelerator: str | None) -> str:
    """What the device plugin calls a kind of accelerator (``nvidia.com/gpu``)."""
    found = (name for start, name in _DEVICES.items() if (accelerator or "").lower().startswith(start))
    return next(found, "nvidia.com/gpu")


def _container(job: Job, options: KubernetesOptions, name: str, place: Place | None) -> dict[str, Any]:
    """hf-recipes is the container's first process: Kubernetes signals that one alone."""
    command = node_command(job, CONFIG_FOLDER)
    if place is not None:
        command += place_flags(job, place.rank, place.address, place.port)
    container: dict[str, Any] = {
        "name": name,
        "image": options.image,
        "command": command,
        "workingDir": WORK_FOLDER,
        # Weights that were fetched once stay there for the next start.
        "env": [{"name": "HF_HOME", "value": f"{WORK_FOLDER}/.cache/huggingface"}],
        "resources": _resources(job, options),
        "volumeMounts": [
            {"name": "recipe", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "workspace", "mountPath": WORK_FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    return container


def _resources(job: Job, options: KubernetesOptions) -> dict[str, Any]:
    requests: dict[str, str] = {"cpu": str(job.cores)}
    limits: dict[str, str] = {}
    if options.memory:
        requests["memory"] = limits["memory"] = options.memory
    if job.devices:  # a request must be the limit, which is the default
        limits[device_resource(job.accelerator)] = str(job.devices)
    return {"requests": requests, **({"limits": limits} if limits else {})}
