"""The job as data: names, times, the node's command, where a run may lie."""

from __future__ import annotations

import re

import pytest
from cluster_jobs import a_job
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.clusters.job import check_name, job_name, node_command, place_flags, time_seconds
from hf_recipes.clusters.places import inside, shared
from hf_recipes.clusters.texts import check_form, check_line, check_run_directory
from hf_recipes.core.errors import UserError


@given(st.text())
def test_every_name_becomes_one_that_kubernetes_takes(text):
    name = job_name(text)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name  # RFC 1035
    assert len(name) <= 50
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["Orders", "7b", "a_b", "-a", "a" * 51])
def test_a_name_of_the_users_is_not_changed_in_silence(name):
    with pytest.raises(UserError, match=f"--name: '{name}'"):
        check_name(name)


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_times_are_read_as_slurm_reads_them(days, hours, minutes, seconds):
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert time_seconds(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == whole
    assert time_seconds(f"{days * 24 + hours}:{minutes:02}:{seconds:02}") == whole


# sbatch(1), --time: "minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours", "days-hours:minutes", …
@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 5400), ("10:30", 630), ("1:00:00", 3600), ("2-0", 172800), ("1-02:30", 95400)]
)
def test_short_times(text, seconds):
    assert time_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "a day", "1:2:3:4", "1h", "-5", "0:00:00"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UserError, match="--time"):
        time_seconds(text)


def test_a_node_of_several_is_told_its_place_and_a_single_one_is_not():
    job = a_job(configs=("accelerate.yaml",))
    assert node_command(job, "/etc/x/") == [
        *("hf-recipes", "sft", "--config", "/etc/x/recipe.yaml", "--config_file", "/etc/x/accelerate.yaml"),
        *("--num_processes", "8"),
    ]
    assert place_flags(job, "R", "IP", "PORT") == [
        *("--num_machines", "2", "--machine_rank", "R"),
        *("--main_process_ip", "IP", "--main_process_port", "PORT"),
    ]
    single = a_job(nodes=1, verb="classify")
    assert node_command(single) == ["hf-recipes", "classify", "--config", "recipe.yaml", "--num_processes", "8"]
    assert place_flags(single, "R", "IP", "PORT") == []


def test_a_scheduler_waits_longer_than_the_run_takes_to_save():
    from hf_recipes.training.rank_group import MARGIN_SECONDS

    job = a_job(grace_seconds=99.5)
    assert job.kill_seconds >= 99.5 + MARGIN_SECONDS


@pytest.mark.parametrize(
    ("mount", "given_path", "there"),
    [
        ("/runs", "runs/a", "/runs/a"),
        ("/runs", "a", "/runs/a"),
        ("/runs", "/runs/deep/a", "/runs/deep/a"),
        ("/workspace", "runs/a", "/workspace/runs/a"),
        ("/workspace", "/workspace/a", "/workspace/a"),
    ],
)
def test_a_run_lies_where_it_outlives_its_machine(mount, given_path, there):
    assert inside(mount, given_path, "the bucket") == there


@pytest.mark.parametrize("lost", ["/tmp/a", "/runs", "/runsx/a", "../a", "/runs/../a"])
def test_a_run_on_a_machines_own_disk_is_refused(lost):
    with pytest.raises(UserError, match="is lost with its machine: write --output_dir /runs/"):
        inside("/runs", lost, "the bucket")


def test_ray_needs_a_path_that_all_nodes_mean_the_same_by():
    assert shared("/nfs/a") == "/nfs/a"
    with pytest.raises(UserError, match="absolute path"):
        shared("runs/a")


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("~/runs", "~"),
        ("~me/a", "~me"),
        ("$SCRATCH/runs", "$SCRATCH"),
        ("/data/${USER}/a", "${USER}"),
        ("$(pwd)", "$(pwd)"),
    ],
)
def test_what_a_shell_would_put_in_is_to_be_written_out(path, part):
    with pytest.raises(UserError, match="write the path out") as refusal:
        check_run_directory(path)
    assert f"a directory called '{part}'" in str(refusal.value)


@pytest.mark.parametrize(
    "path", ["runs/a", "/data/a~b", "/data/~me/a", "/data/us$/a", "runs/it's mine", "/d\u00e4ten/a"]
)
def test_other_paths_are_taken_as_they_are(path):
    check_run_directory(path)


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", "\0", "\x85", "\u2028", "\udc80"])
def test_a_control_character_is_refused_and_shown(character):
    with pytest.raises(UserError, match=r"--qos: .*control character") as refusal:
        check_line("--qos", f"a{character}b")
    assert str(refusal.value).isascii()
    assert str(refusal.value).isprintable()


# Kubernetes: names of RFC 1123, labels ("/" after a prefix), quantities (Ki but k); buckets as S3 names them.
FORMS = {
    "namespace": (["ml", "team-1"], ["ML", "a.b", "-a", "a_b", "a" * 64]),
    "pvc": (["work", "a.b-1"], ["Work", "a..b", "a b", "a" * 64, "a." * 126 + "ab"]),
    "image": (["me/x:1", "host.org:5000/me/x@sha256:0af"], ["me/x :1", "x;y"]),
    "memory": (["64Gi", "1.5G", "900", "12e9", "8k"], ["64GB", "64K", "64 Gi", "0", "lots", "-1Gi"]),
    "node-selector": (["a=b", "k8s.io/gpu=H100,zone=", "a=b_c"], ["gpu", "=b", "a=b c", "a=b,,c=d", "a=b=c"]),
    "bucket": (["s3://mine/runs", "gs://a", "my-runs"], ["s3://", "My_Bucket", "a", "a b", "-ab", "s3:/mine"]),
    "partition": (["anything at all"], ["", "  "]),
}


@pytest.mark.parametrize("flag", FORMS)
def test_a_flag_has_the_form_that_its_scheduler_takes(flag):
    good, bad = FORMS[flag]
    for text in good:
        check_form(flag, text)
    for text in bad:
        with pytest.raises(UserError, match=f"^--{flag}: "):
            check_form(flag, text)
