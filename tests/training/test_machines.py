"""The place of a machine among several, and two of them trained by the command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
import yaml

from hf_recipes.core.errors import UserError
from hf_recipes.training.launch import launch_command
from hf_recipes.training.machines import ALONE, Machine, place_of

HF_RECIPES = [sys.executable, "-c", "from hf_recipes.cli.main import main; raise SystemExit(main())"]


def config_file(tmp_path, **content):
    file = tmp_path / "accelerate.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


def test_flags_and_config_file_say_it_together(tmp_path):
    assert place_of({}, None) == ALONE
    assert place_of({}, config_file(tmp_path, num_machines=1)) == ALONE
    flags = {"num_machines": "2", "machine_rank": "1", "main_process_ip": "head"}
    assert place_of(flags, None) == Machine(2, 1, "head", 29500)
    file = config_file(tmp_path, num_machines=2, main_process_ip="head", main_process_port=1234)
    assert place_of({"machine_rank": "0"}, file) == Machine(2, 0, "head", 1234)
    assert place_of({"machine_rank": "1", "main_process_port": "99"}, file) == Machine(2, 1, "head", 99)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"num_machines": "2", "main_process_ip": "head"}, "--machine_rank: several machines"),
        ({"num_machines": "2", "machine_rank": "2", "main_process_ip": "head"}, "2 is none of 2 machines: give 0 to 1"),
        (
            {"num_machines": "2", "machine_rank": "-1", "main_process_ip": "head"},
            "'-1' is no whole number from 0 to 65535",
        ),
        ({"num_machines": "2", "machine_rank": "0"}, "give --main_process_ip"),
        ({"num_machines": "two"}, "'two' is no whole number from 1 to 65535"),
        ({"num_machines": "0"}, "'0' is no whole number from 1 to 65535"),
        ({"machine_rank": "1"}, "--machine_rank is for several machines"),
        ({"main_process_ip": "head"}, "--main_process_ip is for several machines"),
        (
            {"num_machines": "2", "machine_rank": "0", "main_process_ip": "head", "main_process_port": "99999"},
            "'99999' is no whole number",
        ),
    ],
)
def test_wrong_places_are_one_sentence(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        place_of(flags, None)


def test_another_number_than_the_files_is_refused(tmp_path):
    with pytest.raises(UserError, match="says num_machines: 4: give the same"):
        place_of({"num_machines": "2"}, config_file(tmp_path, num_machines=4))


def test_the_launcher_is_told_of_all_ranks_and_this_machine():
    command = launch_command("m", ["--x"], 4, None, Machine(2, 1, "head", 99))
    words = " ".join(command)
    assert "--num_processes 8 --num_machines 2 --machine_rank 1 --main_process_ip head --main_process_port 99" in words
    assert "--multi_gpu" in command
    with_file = launch_command("m", [], 1, "f.yaml", Machine(2, 0, "head", 99))
    assert "--multi_gpu" not in with_file
    assert with_file[with_file.index("--num_processes") + 1] == "2"


@pytest.fixture
def recipe(tmp_path, tiny_model_dir):
    rows = [{"instruction": f"Say number {i}", "output": f"The number is {i * 7 % 10}."} for i in range(16)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "model_name_or_path": str(tiny_model_dir),
        "datasets": [{"path": str(tmp_path / "data.jsonl")}],
        "eval_share": 0,
        "max_steps": 2,
        "overfit_check": "off",
        "save_steps": 2,
        "disable_tqdm": True,
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "recipe.yaml"


def on_two_machines(recipe, *keys):
    """Start the command of each on this one; exit codes and what they said."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    common = [*HF_RECIPES, "sft", "--config", str(recipe), "--num_machines", "2", "--main_process_ip", "127.0.0.1"]
    common += ["--main_process_port", str(port), *keys]
    started = [
        subprocess.Popen(
            [*common, "--machine_rank", str(number)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for number in (0, 1)
    ]
    said = [each.communicate(timeout=600)[0] for each in started]
    return [each.returncode for each in started], said


def test_machines_without_one_run_directory_are_refused(recipe, capsys):
    from hf_recipes.cli.main import main

    place = ["--num_machines", "2", "--machine_rank", "0", "--main_process_ip", "127.0.0.1"]
    assert main(["sft", "--config", str(recipe), *place]) == 2
    assert "give --output_dir, the same on all of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["--strategy", "zero2"], "accelerate shards nothing over CPU ranks: write strategy: ddp, or pp, on a CPU"),
        (["--strategy", "pp"], "1f1b needs at least as many micro-batches a step as there are stages, 2"),
        (["--strategy", "pp", "--method", "qlora"], "strategy: pp trains method: full or lora"),
        (["--strategy", "ddp", "--tensor_parallel_size", "2"], "tensor_parallel_size is for strategy: tp or pp"),
        (["--attn_implementation", "flash_attention_2"], "flash attention needs the package flash-attn, and a GPU"),
    ],
)
def test_what_cannot_be_is_refused_before_ranks_start(keys, sentence, recipe, tmp_path, capsys, monkeypatch):
    from hf_recipes.cli.main import main

    monkeypatch.setattr("hf_recipes.training.launch.has_accelerator", lambda: False)
    monkeypatch.setattr("hf_recipes.models.attention.find_spec", lambda package: None)
    run = tmp_path / "run"
    given = ["--num_processes", "2", "--gradient_accumulation_steps", "1", "--output_dir", str(run), *keys]
    assert main(["sft", "--config", str(recipe), *given]) == 2
    assert sentence in capsys.readouterr().err
    assert not (run / "run.json").exists()


@pytest.mark.slow
@pytest.mark.trials
def test_two_machines_train_and_end_alike(recipe, tmp_path):
    run = tmp_path / "run"
    codes, said = on_two_machines(recipe, "--output_dir", str(run))
    assert codes == [0, 0], said
    assert json.loads((run / "run.json").read_text())["world_size"] == 2
    assert (run / "adapter").is_dir()
    # What only the ranks find out ends both alike, and each says why.
    wrong = ("--output_dir", str(tmp_path / "wrong"), "--lora_target_modules", "none_such")
    codes, said = on_two_machines(recipe, *wrong)
    assert codes == [2, 2], said
    assert all("none_such" in each for each in said)
