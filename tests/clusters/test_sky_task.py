"""SkyPilot's task: by its own schema where it is installed."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from cluster_jobs import a_job

from hf_recipes.clusters.skypilot import ACCELERATORS, SkyOptions, sky_name, sky_task
from hf_recipes.core.accelerators import list_accelerators
from hf_recipes.core.errors import UserError

OPTIONS = {"bucket": "mine", "accelerator": "H100", "package": "hf-recipes==1"}


def task(job=None, **options):
    return yaml.safe_load(sky_task(job or a_job(), SkyOptions(**{**OPTIONS, **options})))


def test_a_stop_on_request_is_recovered_from_and_failures_are_counted():
    resources = task(spot=True, max_failures=5)["resources"]
    assert resources["job_recovery"] == {"max_restarts_on_errors": 5, "recover_on_exit_codes": [75]}
    assert resources["use_spot"] is True
    assert resources["accelerators"] == "H100:8"


def test_runs_are_kept_in_a_bucket_that_takes_appends():
    assert task()["file_mounts"] == {"/runs": {"name": "mine", "mode": "MOUNT_CACHED"}}
    assert task(bucket="s3://mine")["file_mounts"]["/runs"]["source"] == "s3://mine"


def test_cpus_where_there_are_no_devices():
    assert task(a_job(devices=0), accelerator=None)["resources"]["cpus"] == "64+"


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_shell_starts_what_was_meant(nodes, tmp_path):
    program = tmp_path / "hf-recipes"
    program.write_text('#!/bin/bash\necho "$*"\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    }
    done = subprocess.run(
        ["bash", "-c", task(a_job(nodes=nodes))["run"]], env=environment, capture_output=True, text=True
    )
    place = " --num_machines 2 --machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 29500"
    assert done.stdout == f"sft --config recipe.yaml --num_processes 4{place if nodes > 1 else ''}\n"


def test_accelerators_by_skypilots_names():
    assert sky_name("a100-80g") == "A100-80GB"
    assert set(ACCELERATORS) <= {accelerator.key for accelerator in list_accelerators()}
    with pytest.raises(UserError, match="no 'gaudi-3'"):
        sky_name("gaudi-3")


def test_skypilots_own_schema_allows_it():
    schemas = pytest.importorskip("sky.utils.schemas")
    jsonschema = pytest.importorskip("jsonschema")
    for written in (
        task(spot=True, cloud="aws", region="us-east-1"),
        task(a_job(devices=0, nodes=1), accelerator=None),
    ):
        jsonschema.validate(written, schemas.get_task_schema())
        jsonschema.validate(written["resources"], schemas.get_resources_schema())
        with pytest.raises(jsonschema.ValidationError):  # the check can fail
            jsonschema.validate({**written, "num_nodes": "two"}, schemas.get_task_schema())
