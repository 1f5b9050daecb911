"""The test before a run: its record, its failure, what it leaves untouched, and where it is left out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tiny_models import make_tiny_llama

from hf_recipes.core.errors import CheckFailed
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.run import train

RECIPE = """
model_name_or_path: base
datasets: [rows.jsonl]
overfit_check: 8
learning_rate: 2e-3
lora_dropout: 0.2
per_device_train_batch_size: 4
max_steps: 4
logging_steps: 1
eval_strategy: no
save_strategy: no
verify_checkpoints: off
disable_tqdm: true
watch: {live_report: false}
"""


@pytest.fixture
def workplace(tokenizer, tmp_path, monkeypatch):
    """A recipe beside its rows and its base, whose frozen head can tell tokens apart."""
    monkeypatch.chdir(tmp_path)
    make_tiny_llama(len(tokenizer), initializer_range=0.2).save_pretrained("base")
    tokenizer.save_pretrained("base")
    rows = [{"instruction": f"Say {i}", "output": f"It is {i * 7 % 10}."} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def events(directory):
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def losses(directory):
    return [event["loss"] for event in events(directory) if event["kind"] == "log"]


def command(*arguments):
    result = subprocess.run([sys.executable, "-m", "hf_recipes.cli.main", *arguments], capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(
    "keys", [(), pytest.param(("--method", "full", "--activation_checkpointing", "true"), marks=pytest.mark.trials)]
)
def test_a_run_with_the_test_before_it_is_the_run_without(keys, workplace):
    """Losses to the last bit, though dropout draws from the same random state."""
    tested = train(load_recipe("recipe.yaml", ["--output_dir", "tested", *keys])).path
    plain = train(load_recipe("recipe.yaml", ["--output_dir", "plain", "--overfit_check", "off", *keys])).path
    assert losses(tested) == losses(plain)
    weights = "model/model.safetensors" if keys else "adapter/adapter_model.safetensors"
    assert (tested / weights).read_bytes() == (plain / weights).read_bytes()
    kept = json.loads((tested / "overfit.json").read_text())
    assert kept["status"] in ("passed", "unfinished")
    assert kept["evidence"]["data"]["rows"] == 8
    (event,) = [event for event in events(tested) if event["kind"] == "overfit"]
    assert event["status"] == kept["status"]
    assert {each["attempt"] for each in events(tested)} == {1}
    assert not (plain / "overfit.json").exists()


@pytest.mark.trials
def test_a_failed_test_ends_the_run_with_one_sentence_and_code_1(workplace):
    with pytest.raises(CheckFailed, match=r"learning_rate 10 is too large.*overfit_check: off"):
        train(load_recipe("recipe.yaml", ["--output_dir", "run", "--learning_rate", "10"]))
    status = json.loads((workplace / "run/status.json").read_text())
    assert status["code"] == 1
    assert "the overfit test failed" in status["sentence"]
    (event,) = [event for event in events(workplace / "run") if event["kind"] == "overfit"]
    assert event["causes"][0]["kind"] == "learning_rate"
    assert json.loads((workplace / "run/overfit.json").read_text())["status"] == "failed"
    train(load_recipe("recipe.yaml", ["--output_dir", "anyway", "--learning_rate", "10", "--overfit_check", "off"]))


@pytest.mark.trials
def test_left_out_on_resume(workplace, caplog):
    keys = ["--output_dir", "run", "--save_strategy", "steps", "--save_steps", "2"]
    train(load_recipe("recipe.yaml", keys))
    written = (workplace / "run/overfit.json").stat().st_mtime_ns
    resumed = [*keys, "--max_steps", "6", "--resume_from_checkpoint", "last"]
    with caplog.at_level("INFO", logger="hf_recipes"):
        train(load_recipe("recipe.yaml", resumed))
    assert "left out, since the run resumes" in caplog.text
    assert (workplace / "run/overfit.json").stat().st_mtime_ns == written


@pytest.mark.trials
def test_a_stream_is_tested_by_its_first_rows(workplace):
    keys = ["--output_dir", "run", "--streaming", "true", "--eval_share", "0"]
    tested = train(load_recipe("recipe.yaml", keys)).path
    keys[1] = "plain"
    plain = train(load_recipe("recipe.yaml", [*keys, "--overfit_check", "off"])).path
    assert losses(tested) == losses(plain)
    assert json.loads((tested / "overfit.json").read_text())["evidence"]["data"]["rows"] == 8
    counts = [json.loads((run / "data.json").read_text())["sources"] for run in (tested, plain)]
    assert counts[0] == counts[1]


@pytest.mark.trials
def test_two_ranks_share_the_verdict_of_the_first(workplace):
    keys = ("sft", "--config", "recipe.yaml", "--num_processes", "2", "--strategy", "ddp")
    code, _, text = command(*keys, "--output_dir", "run")
    assert code == 0, text
    announced, told = [line for line in text.splitlines() if "Overfit test" in line]  # once, and not by each rank
    assert "up to 8 rows" in announced and "up to" not in told
    assert json.loads((workplace / "run/overfit.json").read_text())["status"] in ("passed", "unfinished")
    code, _, text = command(*keys, "--output_dir", "bad", "--learning_rate", "10")
    assert code == 1, text
    assert "learning_rate 10 is too large" in text
    assert "Traceback" not in text


@pytest.mark.trials
def test_the_verb(workplace):
    code, out, text = command("overfit", "--config", "recipe.yaml", "--strategy", "fsdp", "--json")
    assert code == 0, text
    assert json.loads(out)["status"] in ("passed", "unfinished")
    code, out, _ = command("overfit", "--config", "recipe.yaml", "--learning_rate", "1e-8")
    assert code == 1
    assert "learning_rate 1e-08 is too small" in out
    assert "gradient norm" in out
    assert sorted(path.name for path in workplace.iterdir()) == ["base", "recipe.yaml", "rows.jsonl"]
