"""The batch script: what it asks Slurm for, and that the shell reads it as it was meant."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from cluster_jobs import a_job

from hf_recipes.clusters.slurm import SlurmOptions, slurm_script, submit_lines
from hf_recipes.core.errors import UserError


def directives(script):
    """Name → value of the #SBATCH lines, without their remarks."""
    lines = [line.removeprefix("#SBATCH --").split("  #")[0] for line in script.splitlines() if "#SBATCH" in line]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def a_script(job=None, options=None, folder="jobs/orders"):
    return slurm_script(job or a_job(), options or SlurmOptions(), folder, "/home/me")


def test_what_slurm_is_asked_for():
    asked = directives(a_script(a_job(time_limit="24:00:00"), SlurmOptions(partition="gpu", constraint="a&b")))
    assert asked == {
        "job-name": "orders",
        "nodes": "2",
        "ntasks-per-node": "1",
        "cpus-per-task": "64",
        "gpus-per-node": "h100:8",
        "time": "24:00:00",
        "partition": "gpu",
        "constraint": "'a&b'",
        "requeue": "",
        "signal": "USR1@120",
        "open-mode": "append",
        "output": "runs/orders-%j.log",
        "chdir": "/home/me",
        "export": "ALL",
    }


def test_a_value_stays_one_value():
    job = a_job(accelerator="h100 --nodelist=n1", output_dir="/data/100%j/a run")
    asked = directives(a_script(job, SlurmOptions(account="a b", qos="it's")))
    assert asked["gpus-per-node"] == "'h100 --nodelist=n1:8'"
    assert asked["account"] == "'a b'"
    assert asked["output"] == "/data/100%%j/orders-%j.log"  # sbatch(1), filename pattern: %% is the character


@pytest.mark.parametrize(
    ("more", "option", "folder", "what"),
    [
        ({}, "a\ntouch F\n#", "jobs/a", "--partition"),
        ({"accelerator": "h100:1\n#SBATCH --uid=0"}, None, "jobs/a", "--gpu"),
        ({"output_dir": "runs\ntouch F\n/a"}, None, "jobs/a", "output_dir"),
        ({}, None, "jobs/a\u2028b", "--write"),
    ],
)
def test_a_line_break_adds_no_line(more, option, folder, what):
    with pytest.raises(UserError, match=f"{what}: .*line break") as refusal:
        a_script(a_job(**more), SlurmOptions(partition=option), folder)
    assert "\n" not in str(refusal.value)


def test_a_longer_save_is_signalled_earlier():
    assert directives(a_script(a_job(grace_seconds=299.5)))["signal"] == "USR1@300"


def test_nothing_is_asked_for_that_was_not_given():
    asked = directives(a_script(a_job(devices=0, accelerator=None, nodes=1)))
    assert not {"gpus-per-node", "time", "partition", "account", "qos", "constraint"} & set(asked)


def test_a_cancelled_job_must_not_come_back():
    """Slurm ends a cancelled job's shell with SIGTERM; trapped, it would go on to requeue the job."""
    assert not [line for line in a_script().splitlines() if line.split("#")[0].strip().startswith("trap")]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("folder", ["jobs/orders", "jobs/it's mine"])
def test_the_shell_starts_what_was_meant(nodes, folder, tmp_path):
    """The real bash runs it, with programs that write down what they are started with."""
    (tmp_path / "bin").mkdir()
    programs = {
        "srun": 'while [ "${1#--}" != "$1" ]; do echo "option $1"; shift; done; SLURM_NODEID=1 "$@"',
        "hf-recipes": 'printf "%s\\n" "$@"; exit 75',
        "scontrol": 'if [ "$1" = show ]; then printf "first\\nsecond\\n"; else echo "scontrol $*"; fi',
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "job").write_text(a_script(a_job(nodes=nodes), folder=folder))
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "SLURM_JOB_ID": "20007",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_CPUS_PER_TASK": "64",
    }
    done = subprocess.run(["bash", tmp_path / "job"], env=environment, capture_output=True, text=True)
    assert done.returncode == 75, done.stderr
    assert done.stderr == ""
    place = ["--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "first", "--main_process_port", "10007"]
    assert done.stdout.splitlines() == [
        *("option --cpus-per-task=64", "option --kill-on-bad-exit=0"),
        *("sft", "--config", f"{folder}/recipe.yaml", "--num_processes", "8", *(place if nodes > 1 else ())),
        "scontrol requeue 20007",
    ]


@pytest.mark.parametrize("nodes", [1, 2])
def test_shellcheck_has_nothing_to_say(nodes, tmp_path):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    (tmp_path / "job.sbatch").write_text(a_script(a_job(nodes=nodes)))
    done = subprocess.run(["shellcheck", tmp_path / "job.sbatch"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_logs_directory_is_made_before_slurm_needs_it():
    (line,) = submit_lines(a_job(output_dir="my runs/a"), "jobs/a", "/home/me")
    assert line == "mkdir -p '/home/me/my runs' && sbatch jobs/a/job.sbatch"
