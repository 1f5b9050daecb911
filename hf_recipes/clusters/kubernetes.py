"""Manifests for Kubernetes: a plain Job, Kubeflow's PyTorchJob (training operator v1) or TrainJob (Trainer v2).

Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/ (batch/v1, pod failure policy stable since
1.31); kubeflow/training-operator release-1.9 and kubeflow/trainer v2.3.0: their controllers set the variables used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_recipes.clusters.job import STOPPED, Job, time_seconds
from hf_recipes.clusters.pod import PORT, KubernetesOptions, Place, config_name, pod_spec
from hf_recipes.core.errors import UserError

FILE = "job.yaml"


@dataclass(frozen=True)
class Document:
    """One object of a manifest, and what a reader has to know of it."""

    why: str
    content: dict[str, Any]


def kubernetes_manifest(job: Job, options: KubernetesOptions, files: Mapping[str, str]) -> str:
    """All objects of the job as one YAML text: the ConfigMap with the recipe, then what runs.

    Args:
        job: what is run.
        options: of the cluster.
        files: the recipe and what belongs to it, name → text.

    Raises:
        UserError: there is no such kind.
    """
    kind = kind_of(job, options)
    documents = [_config_map(job, options, files), *KINDS[kind](job, options)]
    return "---\n".join(_text(document) for document in documents)


def kind_of(job: Job, options: KubernetesOptions) -> str:
    """The kind that runs: as asked, else a plain Job for one node and a PyTorchJob for several.

    Raises:
        UserError: there is no such kind, or it needs several nodes.
    """
    kind = options.kind or ("job" if job.nodes == 1 else "pytorchjob")
    if kind not in KINDS:
        raise UserError(f"--kind: '{kind}' is none of {', '.join(KINDS)}.")
    return kind


def submit_lines(folder: str) -> tuple[str, ...]:
    """The namespace stands in the manifest, where one was named."""
    return (f"kubectl apply -f {shlex.quote(f'{folder}/{FILE}')}",)


def _text(document: Document) -> str:
    from hf_recipes.clusters.yaml_text import yaml_text

    return "".join(f"# {line}\n" for line in document.why.splitlines()) + yaml_text(document.content)


def _metadata(job: Job, options: KubernetesOptions, name: str | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name or job.name}
    if options.namespace:
        metadata["namespace"] = options.namespace
    metadata["labels"] = {"app.kubernetes.io/name": job.name, "app.kubernetes.io/managed-by": "hf-recipes"}
    return metadata


def _config_map(job: Job, options: KubernetesOptions, files: Mapping[str, str]) -> Document:
    content = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, options, config_name(job)),
        "data": dict(files),
    }
    return Document("The recipe, as every node sees it.", content)


def _batch_spec(job: Job, options: KubernetesOptions, pod: dict[str, Any]) -> dict[str, Any]:
    """Of a Job whose pods are started again after a stop on request, or when their machine goes, without counting."""
    spec: dict[str, Any] = {
        "backoffLimit": options.max_failures * job.nodes,  # each pod of a failed run counts
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [STOPPED]}},
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [UserError.exit_code]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "podReplacementPolicy": "Failed",  # not before the old pod has saved and ended
    }
    if job.nodes > 1:
        spec |= {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes}
    if job.time_limit:
        spec["activeDeadlineSeconds"] = time_seconds(job.time_limit)
    return spec | {"template": {"spec": pod}}


_EXIT_CODES = f"""Exit code {STOPPED} (stopped on request, saved) and lost machines start a pod again and do not count;
code {UserError.exit_code} (the recipe is wrong) ends the job; anything else is tried again up to backoffLimit pods."""


def _plain_job(job: Job, options: KubernetesOptions) -> list[Document]:
    several = job.nodes > 1
    place = Place("$(JOB_COMPLETION_INDEX)", f"{job.name}-0.{job.name}", str(PORT)) if several else None
    subdomain = {"subdomain": job.name} if several else {}
    pod = pod_spec(job, options, job.verb, place, restartPolicy="Never", **subdomain)
    content = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, options),
        "spec": _batch_spec(job, options, pod),
    }
    documents = [Document(_EXIT_CODES, content)]
    if several:
        documents.insert(0, _headless_service(job, options))
    return documents


def _headless_service(job: Job, options: KubernetesOptions) -> Document:
    spec = {
        "clusterIP": "None",
        "selector": {"batch.kubernetes.io/job-name": job.name},
        "publishNotReadyAddresses": True,
        "ports": [{"name": "rendezvous", "port": PORT}],
    }
    metadata = _metadata(job, options)
    content = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    return Document("Gives the pods names: the first is where all of them meet.", content)


def _pytorch_job(job: Job, options: KubernetesOptions) -> list[Document]:
    """The operator's `ExitCode` policy takes 1 to 127 for final, and 75 with them, so it is `OnFailure`."""
    place = Place("$(PET_NODE_RANK)", "$(MASTER_ADDR)", "$(MASTER_PORT)") if job.nodes > 1 else None
    pod = pod_spec(job, options, "pytorch", place)  # the name that the operator looks for

    def replicas(count: int) -> dict[str, Any]:
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}

    policy: dict[str, Any] = {
        "backoffLimit": options.max_failures * job.nodes,
        "cleanPodPolicy": "Running",
    }
    if job.time_limit:
        policy["activeDeadlineSeconds"] = time_seconds(job.time_limit)
    specs = {"Master": replicas(1)} | ({"Worker": replicas(job.nodes - 1)} if job.nodes > 1 else {})
    content = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(job, options),
        "spec": {"runPolicy": policy, "pytorchReplicaSpecs": specs},
    }
    return [Document(_OPERATOR_CODES, content)]


_OPERATOR_CODES = f"""restartPolicy is OnFailure: ExitCode takes codes 1 to 127 for final, and with them {STOPPED}
(stopped on request, saved). OnFailure tells no codes apart: each restart of a container counts towards
backoffLimit, a pod that was deleted with its machine does not.
The operator sets PET_NODE_RANK, MASTER_ADDR and MASTER_PORT."""


def _train_job(job: Job, options: KubernetesOptions) -> list[Document]:
    """The runtime is the job's own: patching a shared one has changed its form between the releases of Trainer v2."""
    place = Place("$(PET_NODE_RANK)", "$(MASTER_ADDR)", "$(MASTER_PORT)") if job.nodes > 1 else None
    pod = pod_spec(job, options, "node", place, restartPolicy="Never")  # "node": the name that the operator looks for
    batch = _batch_spec(job, options, pod)
    for ours in ("completionMode", "completions", "parallelism"):
        batch.pop(ours, None)  # the operator's
    template = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}, "spec": batch}
    runtime = {
        "apiVersion": _TRAINER,
        "kind": "TrainingRuntime",
        "metadata": _metadata(job, options),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}},
        },
    }
    content = {
        "apiVersion": _TRAINER,
        "kind": "TrainJob",
        "metadata": _metadata(job, options),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            "trainer": {"numNodes": job.nodes},
        },
    }
    return [Document(f"{_EXIT_CODES}\n{_UNSTABLE}", runtime), Document("", content)]


_TRAINER = "trainer.kubeflow.org/v1alpha1"
_UNSTABLE = "Written for Kubeflow Trainer 2.0 to 2.3, whose interface is an alpha one."

# Kind → the objects that run the job.
KINDS: dict[str, Callable[[Job, KubernetesOptions], list[Document]]] = {
    "job": _plain_job,
    "pytorchjob": _pytorch_job,
    "trainjob": _train_job,
}
