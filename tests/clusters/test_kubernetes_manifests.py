"""The manifests: what a cluster makes of them, by its own client and schemas where those are installed."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import yaml
from cluster_jobs import a_job
from published_schemas import FOLDER, published_schema

from hf_recipes.clusters.kubernetes import KINDS, kubernetes_manifest
from hf_recipes.clusters.pod import KubernetesOptions, device_resource
from hf_recipes.core.errors import UserError

FILES = {"recipe.yaml": "model_name_or_path: x\n", "deepspeed.json": "{}\n"}
MANIFESTS = [(kind, nodes) for kind in KINDS for nodes in (1, 3)]


def documents(kind=None, job=None, **options):
    options = KubernetesOptions(**{"image": "me/train:1", "claim": "work", "kind": kind, **options})
    return list(yaml.safe_load_all(kubernetes_manifest(job or a_job(), options, FILES)))


def find(content, key):
    """All values of a key, however deep."""
    if isinstance(content, list):
        return [found for each in content for found in find(each, key)]
    if not isinstance(content, dict):
        return []
    here = [content[key]] if key in content else []
    return here + [found for name, each in content.items() if name != key for found in find(each, key)]


def kinds(found):
    return [document["kind"] for document in found]


def test_one_node_is_a_plain_job_and_several_are_kubeflows():
    assert kinds(documents(job=a_job(nodes=1))) == ["ConfigMap", "Job"]
    assert kinds(documents(job=a_job(nodes=2))) == ["ConfigMap", "PyTorchJob"]
    assert kinds(documents("trainjob")) == ["ConfigMap", "TrainingRuntime", "TrainJob"]
    assert kinds(documents("job")) == ["ConfigMap", "Service", "Job"]
    with pytest.raises(UserError, match="--kind: 'pod' is none of job, pytorchjob, trainjob"):
        documents("pod")


def test_the_recipe_travels_with_the_job_unchanged():
    (config, *_) = documents()
    assert config["data"] == FILES
    assert find(documents(), "configMap") == [{"name": config["metadata"]["name"]}] * 2  # Master and Worker


@pytest.mark.parametrize(("kind", "nodes"), MANIFESTS)
def test_hf_recipes_is_the_first_process_and_is_given_time(kind, nodes):
    pods = find(documents(kind, a_job(nodes=nodes, grace_seconds=110)), "containers")
    assert pods
    for (container,) in pods:
        assert container["command"][:4] == ["hf-recipes", "sft", "--config", "/etc/hf-recipes/recipe.yaml"]
        assert ("--machine_rank" in container["command"]) == (nodes > 1)
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]
    graces = find(documents(kind, a_job(nodes=nodes, grace_seconds=110)), "terminationGracePeriodSeconds")
    assert set(graces) == {120}


# What each controller puts into a pod's environment: Kubernetes (JOB_COMPLETION_INDEX, of Indexed jobs);
# training-operator release-1.9, pkg/controller.v1/pytorch/envvar.go and master.go; trainer v2.3.0,
# pkg/runtime/framework/plugins/torch/torch.go.
@pytest.mark.parametrize(
    ("kind", "rank", "address"),
    [
        ("job", "$(JOB_COMPLETION_INDEX)", "orders-0.orders"),
        ("pytorchjob", "$(PET_NODE_RANK)", "$(MASTER_ADDR)"),
        ("trainjob", "$(PET_NODE_RANK)", "$(MASTER_ADDR)"),
    ],
)
def test_each_pod_learns_its_place_without_a_shell(kind, rank, address):
    command = find(documents(kind), "command")[0]
    told = dict(pairwise(command))
    assert told["--num_machines"] == "2"
    assert (told["--machine_rank"], told["--main_process_ip"]) == (rank, address)


def test_pods_of_a_plain_job_have_the_names_that_they_look_for():
    _, service, job = documents("job", a_job(nodes=3))
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"] == job["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"
    assert [job["spec"][key] for key in ("completionMode", "completions", "parallelism")] == ["Indexed", 3, 3]


@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_a_stop_on_request_does_not_count_and_a_wrong_recipe_is_not_tried_again(kind):
    (policy,) = find(documents(kind), "podFailurePolicy")
    actions = {code: rule["action"] for rule in policy["rules"] for code in find(rule, "values") or [None] for code in
               (code or ["disruption"])}  # fmt: skip
    assert actions == {75: "Ignore", 2: "FailJob", "disruption": "Ignore"}
    assert find(documents(kind), "backoffLimit") == [3 * 2]  # each pod of a failed run counts
    assert set(find(documents(kind), "restartPolicy")) == {"Never"}  # a pod failure policy needs it


def test_the_operators_exit_code_policy_would_take_75_for_final():
    """training-operator release-1.9, pkg/util/train: codes from 128 up alone are tried again."""
    assert set(find(documents("pytorchjob"), "restartPolicy")) == {"OnFailure"}
    (specs,) = find(documents("pytorchjob", a_job(nodes=5)), "pytorchReplicaSpecs")
    assert {name: spec["replicas"] for name, spec in specs.items()} == {"Master": 1, "Worker": 4}
    (specs,) = find(documents("pytorchjob", a_job(nodes=1)), "pytorchReplicaSpecs")
    assert list(specs) == ["Master"]


def test_what_the_user_asks_for_is_there():
    found = documents(
        "job",
        a_job(time_limit="10:00:00", accelerator="mi300x"),
        namespace="ml",
        node_selector={"zone": "a"},
        memory="64Gi",
        max_failures=7,
    )
    assert {document["metadata"]["namespace"] for document in found} == {"ml"}
    assert find(found, "nodeSelector") == [{"zone": "a"}]
    assert find(found, "activeDeadlineSeconds") == [36000]
    assert find(found, "backoffLimit") == [14]
    (resources,) = find(found, "resources")
    assert resources["limits"] == {"memory": "64Gi", "amd.com/gpu": "8"}
    assert resources["requests"] == {"memory": "64Gi", "cpu": "64"}


def test_devices_by_their_plugins_names():
    assert [device_resource(key) for key in ("h100", None, "MI300X", "gaudi-3")] == [
        *("nvidia.com/gpu", "nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
    ]


_MODELS = {"ConfigMap": "V1ConfigMap", "Service": "V1Service", "Job": "V1Job"}


@pytest.mark.parametrize("nodes", [1, 3])
def test_kubernetes_own_client_reads_all_of_it(nodes):
    """Its models drop what they do not know: what comes back must be what went in."""
    client = pytest.importorskip("kubernetes.client")
    import json

    api = client.ApiClient()
    for document in documents("job", a_job(nodes=nodes, time_limit="10:00:00"), memory="1Gi"):
        model = api.deserialize(SimpleNamespace(data=json.dumps(document)), _MODELS[document["kind"]])
        assert api.sanitize_for_serialization(model) == document


@pytest.mark.parametrize("nodes", [1, 3])
def test_kubeflows_own_models_read_all_of_it(nodes):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    _, runtime, job = documents("trainjob", a_job(nodes=nodes, time_limit="10:00:00"))
    for document, model in (
        (runtime, models.TrainerV1alpha1TrainingRuntime),
        (job, models.TrainerV1alpha1TrainJob),
    ):
        assert model.from_dict(document).to_dict() == document


@pytest.mark.parametrize(("kind", "nodes"), [(kind, nodes) for kind, nodes in MANIFESTS if kind != "job"])
def test_published_schemas_allow_all_of_it(kind, nodes):
    jsonschema = pytest.importorskip("jsonschema")
    checked = 0
    for document in documents(kind, a_job(nodes=nodes, time_limit="10:00:00"), memory="1Gi"):
        schema = published_schema(document["kind"], document["apiVersion"].split("/")[-1])
        if schema:
            checked += 1
            jsonschema.Draft202012Validator(schema).validate(document)
            with pytest.raises(jsonschema.ValidationError):  # the check can fail
                jsonschema.Draft202012Validator(schema).validate({**document, "spce": {}})
    if not checked:
        pytest.skip(f"{FOLDER} names no folder with the resources' definitions")
