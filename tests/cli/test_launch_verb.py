"""`hf-recipes launch` from the command line: what is written, what is told, what is refused."""

from __future__ import annotations

import json

import pytest
import yaml

from hf_recipes.cli.launch_flags import FLAGS, OF_SOME
from hf_recipes.cli.launch_targets import TARGETS
from hf_recipes.cli.main import main
from hf_recipes.recipe.resolve import load_recipe

RECIPE = {
    "model_name_or_path": "org/model",
    "datasets": [{"path": "rows.jsonl"}],
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_processes": 1,
}
# What each scheduler cannot do without.
NEEDED = {
    "slurm": (),
    "k8s": ("--image", "me/x:1", "--pvc", "work"),
    "skypilot": ("--bucket", "mine", "--gpu", "h100"),
    "ray": ("--output_dir", "/nfs/runs/mine"),
}

PIPELINE = ("--gpus", "4", "--strategy", "pp")
CPUS = ("--gpus", "0", "--nodes", "2", "--num_processes", "2")


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A recipe with its data beside it, and another directory to stand in."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/mine.yaml").write_text(yaml.safe_dump(RECIPE))
    (tmp_path / "recipes/rows.jsonl").write_text('{"instruction": "a", "output": "b"}\n')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def launch(capsys, on, *more, config="../recipes/mine.yaml", write="job"):
    code = main(["launch", "--config", config, "--on", on, "--write", write, *more])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("on", TARGETS)
def test_a_recipe_becomes_a_job_whose_recipe_loads_and_resumes(on, workplace, capsys):
    code, out, _ = launch(capsys, on, *NEEDED[on], "--nodes", "2", "--gpus", "4", "--learning_rate", "1e-3")
    assert code == 0
    written = sorted(path.name for path in (workplace / "here/job").iterdir())
    assert written == sorted(["recipe.yaml", TARGETS[on].file])
    recipe = load_recipe("job/recipe.yaml")
    assert recipe.get("strategy") == "ddp"
    assert recipe.get("resume_from_checkpoint") == "auto"
    assert recipe.get("learning_rate") == 1e-3
    assert "num_processes" not in recipe.given  # the command's, which differs by node
    assert recipe.get("output_dir").endswith("/mine")
    assert "strategy: auto is ddp here" in out
    assert "64 rows a step (2 × 4 accumulated × 8 data-parallel ranks)" in out
    assert "num_processes: the recipe's is put aside for --gpus 4" in out
    assert "datasets.0.path" in out  # of this machine
    assert out.splitlines()[-1].startswith("  ")  # how it is submitted


def test_paths_are_found_on_slurm_and_kept_as_they_are_elsewhere(workplace, capsys):
    launch(capsys, "slurm", write="s")
    launch(capsys, "k8s", *NEEDED["k8s"], write="k")
    found = {name: yaml.safe_load((workplace / "here" / name / "recipe.yaml").read_text()) for name in ("s", "k")}
    assert found["s"]["datasets"][0]["path"] == str(workplace / "recipes/rows.jsonl")
    assert found["k"]["datasets"][0]["path"] == "rows.jsonl"


def test_what_ships_with_the_package_is_everywhere(workplace, capsys):
    _, out, _ = launch(capsys, "k8s", *NEEDED["k8s"], config="smollm2/sft_lora")
    assert "Of this machine" not in out


@pytest.mark.parametrize(
    ("strategy", "files", "kind"),
    [("zero3", ["accelerate.yaml", "deepspeed.json"], "DEEPSPEED"), ("fsdp", ["accelerate.yaml"], "FSDP")],
)
def test_a_strategy_brings_its_configs_as_the_nodes_find_them(strategy, files, kind, workplace, capsys):
    launch(capsys, "k8s", *NEEDED["k8s"], "--nodes", "2", "--gpus", "8", "--strategy", strategy)
    job = workplace / "here/job"
    config = yaml.safe_load((job / "accelerate.yaml").read_text())
    assert (config["distributed_type"], config["num_machines"], config["num_processes"]) == (kind, 2, 16)
    (configs, *_) = yaml.safe_load_all((job / "job.yaml").read_text())
    assert sorted(configs["data"]) == sorted([*files, "recipe.yaml"])
    assert all(configs["data"][name] == (job / name).read_text() for name in configs["data"])
    if strategy == "zero3":
        assert config["deepspeed_config"]["deepspeed_config_file"] == "/etc/hf-recipes/deepspeed.json"
        assert json.loads((job / "deepspeed.json").read_text())["zero_optimization"]["stage"] == 3


def test_kubernetes_waits_as_long_as_the_run_takes_to_save(workplace, capsys):
    _, out, _ = launch(capsys, "k8s", *NEEDED["k8s"])
    assert "preemption_grace_seconds is set for k8s: 110" in out
    assert load_recipe("job/recipe.yaml").get("preemption_grace_seconds") == 110
    assert "terminationGracePeriodSeconds: 120\n" in (workplace / "here/job/job.yaml").read_text()
    launch(capsys, "k8s", *NEEDED["k8s"], "--preemption_grace_seconds", "300", "--overwrite")
    assert load_recipe("job/recipe.yaml").get("preemption_grace_seconds") == 300
    assert "terminationGracePeriodSeconds: 310\n" in (workplace / "here/job/job.yaml").read_text()


def test_a_spot_machine_is_asked_whether_it_goes(workplace, capsys):
    launch(capsys, "skypilot", *NEEDED["skypilot"], "--spot", "--cloud", "aws")
    assert "spot/instance-action" in load_recipe("job/recipe.yaml").get("preemption_command")
    launch(capsys, "skypilot", *NEEDED["skypilot"], "--cloud", "aws", "--overwrite")
    assert load_recipe("job/recipe.yaml").get("preemption_command") is None


def test_nothing_is_overwritten_unasked_and_nothing_stale_is_left(workplace, capsys):
    launch(capsys, "slurm", "--nodes", "2", "--gpus", "8", "--strategy", "zero2")
    code, _, err = launch(capsys, "slurm")
    assert code == 2
    assert "is there already: name another directory, or give --overwrite" in err
    assert launch(capsys, "slurm", "--overwrite")[0] == 0
    assert sorted(path.name for path in (workplace / "here/job").iterdir()) == ["job.sbatch", "recipe.yaml"]


@pytest.mark.parametrize("name", ["recipe.yaml", "mine.yaml"])
def test_the_users_recipe_is_never_written_over(name, workplace, capsys):
    written = workplace / "recipes" / name
    written.write_text("# a remark\n" + yaml.safe_dump(RECIPE))
    before = sorted(workplace.joinpath("recipes").iterdir())
    for more in ((), ("--overwrite",)):
        code, _, err = launch(capsys, "slurm", *more, config=str(written), write="../recipes")
        assert code == 2
        assert "which must stay: name another directory" in err
    assert written.read_text().startswith("# a remark\n")
    assert sorted(workplace.joinpath("recipes").iterdir()) == before


def test_a_link_to_the_users_recipe_is_not_written_through(workplace, capsys):
    (workplace / "here/job").mkdir()
    (workplace / "here/job/recipe.yaml").symlink_to(workplace / "recipes/mine.yaml")
    code, _, err = launch(capsys, "slurm", "--overwrite")
    assert code == 2
    assert "which must stay" in err


def test_old_files_stay_where_new_ones_cannot_be_written(workplace, capsys):
    launch(capsys, "slurm", "--nodes", "2", "--gpus", "8", "--strategy", "zero2")
    before = {path.name: path.read_text() for path in (workplace / "here/job").iterdir()}
    (workplace / "here/job/.job.sbatch.new").mkdir()  # the last file's place is taken
    code = main(["launch", "--config", "../recipes/mine.yaml", "--on", "slurm", "--write", "job", "--overwrite"])
    assert code != 0
    (workplace / "here/job/.job.sbatch.new").rmdir()
    assert {path.name: path.read_text() for path in (workplace / "here/job").iterdir()} == before


def test_what_cpus_and_pipelines_can_do_is_written(workplace, capsys):
    assert launch(capsys, "slurm", *PIPELINE)[0] == 0
    assert launch(capsys, "slurm", *PIPELINE, "--gradient_accumulation_steps", "1", "--pipeline_schedule", "gpipe",
                  write="gpipe")[0] == 0  # fmt: skip
    assert launch(capsys, "slurm", "--gpus", "0", "--num_processes", "4", "--strategy", "pp", write="cpus")[0] == 0
    assert launch(capsys, "slurm", "--gpus", "0", "--nodes", "2", write="ddp")[0] == 0


def test_a_classifiers_recipe_is_for_its_verb(workplace, capsys):
    (workplace / "recipes/rows.jsonl").write_text('{"text": "a b", "label": "x"}\n{"text": "c", "label": "y"}\n')
    code, _, err = launch(capsys, "slurm")
    assert code == 2
    assert "give --verb classify, or write format: text" in err
    assert launch(capsys, "slurm", "--verb", "classify")[0] == 0
    assert launch(capsys, "slurm", "--datasets.0.format", "text", write="text")[0] == 0


@pytest.mark.parametrize("flag", OF_SOME)
def test_a_flag_of_another_scheduler_is_refused(flag, workplace, capsys):
    for on in set(TARGETS) - set(OF_SOME[flag]):
        code, _, err = launch(capsys, on, *NEEDED[on], f"--{flag}", *(() if flag == "spot" else ("1",)))
        assert code == 2
        assert f"--{flag} is for --on {' or '.join(OF_SOME[flag])}, and this is {on}" in err
    assert not (workplace / "here/job").exists()


@pytest.mark.parametrize(
    ("on", "more", "sentence"),
    [
        ("slrum", (), "--on: 'slrum' is none of slurm, k8s, skypilot, ray (did you mean 'slurm'?)"),
        ("slurm", ("--nodes", "0"), "--nodes: '0' is no whole number from 1"),
        ("slurm", ("--gpus", "many"), "--gpus: 'many' is no whole number from 0"),
        ("slurm", ("--time", "soon"), "--time: 'soon' is no time"),
        ("slurm", ("--name", "My Job"), "--name: 'My Job' is no name that schedulers take"),
        ("slurm", ("--verb", "train"), "--verb: 'train' is none of sft, classify"),
        ("slurm", ("--strategy", "hsdp"), "strategy: hsdp needs several"),
        ("slurm", ("--partiton", "gpu"), "did you mean 'partition'?"),
        ("slurm", ("--learning_rat", "1"), "did you mean 'learning_rate'"),
        ("slurm", ("--partition", "a\ntouch F\n#"), "--partition: 'a\\ntouch F\\n#' holds a line break"),
        ("slurm", ("--account", ""), "--account: is empty"),
        ("slurm", ("--output_dir", '"a\\nb"'), "output_dir: 'a\\nb' holds a line break"),
        ("slurm", ("--output_dir", "$HOME/runs"), "a directory called '$HOME': write the path out"),
        ("ray", ("--output_dir", "/nfs/$USER/a"), "a directory called '$USER': write the path out"),
        ("slurm", ("--preemption_grace_seconds", "-1"), "preemption_grace_seconds: -1.0 is no length of time"),
        ("slurm", ("--time_limit", "soon"), "time_limit"),
        ("slurm", ("--watch.spike_sigmo", "8"), "spike_sigmo"),
        ("slurm", (*PIPELINE, "--gradient_accumulation_steps", "3"), "as many micro-batches a step"),
        ("slurm", (*PIPELINE, "--packing", "true"), "strategy: pp does not go with packing"),
        ("slurm", (*PIPELINE, "--method", "qlora"), "strategy: pp trains method: full or lora"),
        ("slurm", (*PIPELINE, "--verb", "classify"), "strategy: pp is for --verb sft only"),
        ("slurm", ("--verb", "classify"), "has a text and a label"),
        ("slurm", ("--max_label_share", "0.9"), "give --verb classify"),
        *(
            ("slurm", (*CPUS, "--strategy", strategy), "shards nothing over CPU ranks")
            for strategy in ("zero1", "zero3_offload_all", "fsdp", "hsdp", "tp", "cp")
        ),
        ("k8s", (*NEEDED["k8s"], "--namespace", "My Team"), "--namespace: 'My Team' is none"),
        ("k8s", ("--pvc", "work"), "--image: name a container image"),
        ("k8s", ("--image", "me/x"), "--pvc: name a volume claim"),
        ("k8s", (*NEEDED["k8s"], "--node-selector", "gpu"), "write KEY=VALUE"),
        ("k8s", (*NEEDED["k8s"], "--output_dir", "/tmp/a"), "does not lie in /workspace, the volume claim"),
        ("skypilot", ("--gpu", "h100"), "--bucket: name a bucket"),
        ("skypilot", ("--bucket", "mine"), "--gpu: say which kind to rent"),
        ("skypilot", ("--bucket", "mine", "--gpu", "gaudi-3"), "SkyPilot's catalogue has no 'gaudi-3'"),
        ("skypilot", ("--bucket", "mine", "--gpu", "h1000"), "'h1000' is not in the catalogue"),
        ("ray", (), "--output_dir with an absolute path"),
    ],
)
def test_wrong_use_is_one_sentence_and_nothing_is_written(on, more, sentence, workplace, capsys):
    code, _, err = launch(capsys, on, *more)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not (workplace / "here/job").exists()


def test_every_flag_is_in_the_list_that_misspelt_ones_are_compared_with():
    import argparse

    from hf_recipes.cli.launch import add_arguments

    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    assert {option for action in parser._actions for option in action.option_strings} == {f"--{flag}" for flag in FLAGS}


def test_a_home_of_this_machine_is_told_where_the_nodes_may_have_another(workplace, capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    told = "lies in the home directory of this machine"
    for on in TARGETS:
        given = [*NEEDED[on], "--output_dir", "~/runs/mine"]
        code, out, err = launch(capsys, on, *given, write=f"job-{on}")
        if code == 0:
            assert (told in out + err) == (not TARGETS[on].same_files), (on, out, err)
