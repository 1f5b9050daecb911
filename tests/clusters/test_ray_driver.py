"""Ray's driver: that it is Python which says what was meant, and, where Ray is installed, that it trains."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from cluster_jobs import a_job
from hypothesis import example, given
from hypothesis import strategies as st

from hf_recipes.clusters.ray import RayOptions, ray_script, submit_lines


def constants(script):
    """What the script's upper-case names are set to."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(script).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def keywords(script):
    """Every keyword of every call, as written."""
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    return {keyword.arg: ast.unparse(keyword.value) for call in calls for keyword in call.keywords}


def test_one_worker_a_node_starts_the_nodes_ranks():
    script = ray_script(a_job(output_dir="/nfs/runs/a", configs=("accelerate.yaml",)), RayOptions(max_failures=-1))
    named = constants(script)
    assert named["FILES"] == ["recipe.yaml", "accelerate.yaml"]
    assert named["COMMAND"] == [
        *("hf-recipes", "sft", "--config", "recipe.yaml", "--config_file", "accelerate.yaml", "--num_processes", "8")
    ]
    assert [word.format(rank=1, address="10.0.0.1", port=7) for word in named["PLACE"]] == [
        *("--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "10.0.0.1", "--main_process_port", "7")
    ]
    assert named["OUTPUT"] == "/nfs/runs/a"
    assert named["PATIENCE_SECONDS"] > a_job().kill_seconds
    written = keywords(script)
    assert written["num_workers"] == "2"
    assert ast.literal_eval(written["resources_per_worker"]) == {"CPU": 64, "GPU": 8}
    assert written["use_gpu"] == "True"
    assert written["max_failures"] == "-1"
    assert written["storage_path"] == "os.path.abspath('/nfs/runs/ray')"


@given(st.text(min_size=1))
@example('a"); print("{x}\n')
def test_a_path_stays_a_path_whatever_it_holds(name):
    path = f"/nfs/{name}/run"
    script = ray_script(a_job(output_dir=path), RayOptions())
    assert constants(script)["OUTPUT"] == path
    (storage,) = (node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)
                  and ast.unparse(node.func) == "os.path.abspath")  # fmt: skip
    assert ast.literal_eval(storage.args[0]) == str(PurePosixPath(path).parent / "ray")


def test_on_cpus_no_device_is_asked_for():
    written = keywords(ray_script(a_job(output_dir="/nfs/a", devices=0, cores=2), RayOptions()))
    assert ast.literal_eval(written["resources_per_worker"]) == {"CPU": 2}
    assert written["use_gpu"] == "False"


def test_the_directory_travels_with_the_job():
    assert submit_lines("my jobs/a") == ("ray job submit --working-dir 'my jobs/a' -- python ray_train.py",)


@pytest.mark.trials
@pytest.mark.slow
def test_ray_trains_by_it(tiny_model_dir, tmp_path):
    pytest.importorskip("ray.train")
    from hf_recipes.cli.main import main

    rows = [{"instruction": f"Say number {i}", "output": f"The number is {i * 7 % 10}."} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {"model_name_or_path": str(tiny_model_dir), "datasets": [str(tmp_path / "rows.jsonl")], "max_steps": 2}
    (tmp_path / "tiny.yaml").write_text(
        json.dumps({**recipe, "overfit_check": "off", "eval_strategy": "no", "logging_steps": 1})
    )
    run = tmp_path / "runs/tiny"
    keys = ("--gpus", "0", "--cpus", "1", "--output_dir", str(run))
    written = ("--config", str(tmp_path / "tiny.yaml"), "--on", "ray", "--write", str(tmp_path / "job"))
    assert main(["launch", *written, *keys]) == 0
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    subprocess.run([sys.executable, "ray_train.py"], cwd=tmp_path / "job", env=environment, check=True, timeout=1800)
    assert json.loads((run / "status.json").read_text())["code"] == 0
    assert (run / "adapter").is_dir()
