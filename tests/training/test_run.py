"""Whole runs on a tiny model: in this process where that is enough, by the commands users type where it is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from sampled import sampled
from tiny_models import make_tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.run import train

RECIPE = """
model_name_or_path: MODEL
overfit_check: off
datasets:
  - path: domain.jsonl
  - path: general.jsonl
    role: general
learning_rate: 1e-2
per_device_train_batch_size: 4
max_steps: 4
logging_steps: 1
eval_steps: 2
save_steps: 2
disable_tqdm: true
"""


@pytest.fixture
def workplace(tiny_model_dir, tmp_path, monkeypatch):
    """A directory with a recipe and data, as the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("MODEL", str(tiny_model_dir)))
    domain = [{"instruction": f"Say number {i}", "output": f"The number is {i * 7 % 10}."} for i in range(40)]
    general = [
        {"messages": [{"role": "user", "content": f"hi {i}"}, {"role": "assistant", "content": "Hello!"}]}
        for i in range(20)
    ]
    for name, rows in (("domain", domain), ("general", general)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def events(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def logged(run, key="loss"):
    return [event[key] for event in events(run) if event["kind"] == "log" and key in event]


def load_adapter(run):
    """The weights that the newest checkpoint holds."""
    from safetensors.torch import load_file

    newest = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return load_file(newest / "adapter_model.safetensors")


def launch(*command, environment=None):
    result = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    return result.returncode, result.stdout + result.stderr


def test_a_run_leaves_everything_later_verbs_need(workplace):
    run = train(load_recipe("recipe.yaml", ["--output_dir", "run"]))
    facts = json.loads(run.run_json.read_text())
    assert facts["recipe"]["learning_rate"] == 1e-2
    assert facts["world_size"] == 1
    assert len(facts["base_model"]["weights_sha256"]["model.safetensors"]) == 64
    data = json.loads(run.data_json.read_text())
    assert {source["source"]: source["role"] for source in data["sources"]} == {
        "domain": "domain",
        "general": "general",
    }
    # 36 domain rows remain for training: 6 general ones make 6 / 42 = 0.143, the nearest a row allows to 0.15.
    assert (data["sources"][0]["train"], data["sources"][1]["train"]) == (36, 6)
    assert json.loads(run.status_json.read_text())["code"] == 0
    assert {event["kind"] for event in events(run.path)} >= {"begin", "log", "eval", "save", "verify", "end"}
    assert len(logged(run.path)) == 4
    for checkpoint in run.checkpoints():
        assert json.loads((checkpoint / "verified.json").read_text())["ok"]
    assert [checkpoint.name for checkpoint in run.checkpoints()] == ["checkpoint-2", "checkpoint-4"]
    assert (run.path / "curves.png").stat().st_size > 1000
    assert (run.path / "report.html").stat().st_size > 1000
    assert verify_checkpoint(run.adapter).ok


def test_d8_the_end_of_turn_is_obeyed_by_generation(workplace):
    run = train(load_recipe("recipe.yaml", ["--output_dir", "run", "--max_steps", "1"]))
    tokenizer = AutoTokenizer.from_pretrained(run.adapter)
    stop = json.loads((run.adapter / "generation_config.json").read_text())["eos_token_id"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in (stop if isinstance(stop, list) else [stop])
    assert tokenizer.chat_template


@pytest.mark.parametrize("method", sampled(["lora", "dora", "qlora", "full"], keep=["lora"]))
def test_every_method_trains_saves_and_loads_in_plain_transformers(method, workplace, four_bit_model_dir):
    keys = ["--output_dir", "run", "--method", method, "--max_steps", "12", "--eval_strategy", "no"]
    keys += ["--model_name_or_path", str(four_bit_model_dir)]
    run = train(load_recipe("recipe.yaml", keys))
    losses = logged(run.path)
    assert losses[-1] < losses[0] - 0.05, losses
    base = AutoModelForCausalLM.from_pretrained(four_bit_model_dir)
    if method == "full":
        tuned = AutoModelForCausalLM.from_pretrained(run.model)
    else:
        tuned = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(four_bit_model_dir), run.adapter)
    ids = torch.arange(5).unsqueeze(0)
    with torch.no_grad():
        assert (tuned(ids).logits - base(ids).logits).abs().max() > 1e-3


def test_a_finished_run_is_never_written_over(workplace):
    train(load_recipe("recipe.yaml", ["--output_dir", "run", "--max_steps", "1"]))
    before = (workplace / "run" / "run.json").read_bytes()
    with pytest.raises(UserError, match="already holds a run"):
        train(load_recipe("recipe.yaml", ["--output_dir", "run"]))
    assert (workplace / "run" / "run.json").read_bytes() == before


def test_c4_a_resumed_run_has_the_losses_of_the_unbroken_one(workplace, monkeypatch):
    compared = []
    monkeypatch.setattr("transformers.trainer_utils.logger.warning_once", compared.append)
    keys = ["--max_steps", "6", "--save_steps", "0.3"]  # of the run: every second step
    whole = train(load_recipe("recipe.yaml", ["--output_dir", "whole", *keys]))
    broken = train(load_recipe("recipe.yaml", ["--output_dir", "broken", *keys]))
    shutil.rmtree(broken.path / "checkpoint-6")
    shutil.rmtree(broken.adapter)
    weights = broken.path / "checkpoint-4" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    resumed = train(load_recipe("recipe.yaml", ["--output_dir", "broken", *keys, "--resume_from_checkpoint", "last"]))
    again = [event for event in events(resumed.path) if event["kind"] == "log" and event["attempt"] == 2]
    assert [event["step"] for event in again] == [3, 4, 5, 6]
    assert [event["loss"] for event in again] == logged(whole.path)[2:]
    assert compared == []  # no share of the run is taken for another number than its own


def test_t5_a_nan_batch_stops_the_run_with_code_1_and_finite_weights(workplace, tiny_model_dir):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    model = make_tiny_llama(len(tokenizer), tied=False)  # tied, the row would also be in every logit
    (poison,) = tokenizer("¤", add_special_tokens=False)["input_ids"][:1]
    model.get_input_embeddings().weight.data[poison] = float("nan")
    model.save_pretrained("poisoned")
    tokenizer.save_pretrained("poisoned")
    with (workplace / "domain.jsonl").open("a") as file:
        file.write(json.dumps({"instruction": "¤", "output": "bad"}) + "\n")
    keys = ["--output_dir", "run", "--model_name_or_path", "./poisoned", "--eval_share", "0", "--max_steps", "20"]
    keys += ["--save_steps", "1"]
    with pytest.raises(CheckFailed, match="training was stopped: "):
        train(load_recipe("recipe.yaml", keys))
    assert json.loads((workplace / "run" / "status.json").read_text())["code"] == 1
    (alarm,) = [event for event in events(workplace / "run") if event["kind"] == "alarm"]
    assert (alarm["what"], alarm["bad_rank"], alarm["micro_batch"]) == ("loss", 0, 1)
    assert all(torch.isfinite(p).all() for p in load_adapter(workplace / "run").values())


@pytest.mark.slow
def test_two_processes_train_as_one_with_the_same_global_batch(workplace):
    # Dropout draws from each rank's own random state, so it is off where numbers are compared.
    common = ("hf_recipes.cli.main", "sft", "--config", "recipe.yaml", "--lora_dropout", "0")
    one, text = launch(*common, "--output_dir", "one")
    assert one == 0, text
    assert text.count(f"Result: {Path('one') / 'adapter'}. Next: hf-recipes merge one") == 1
    two, text = launch(
        *(*common, "--output_dir", "two", "--num_processes", "2"),
        *("--per_device_train_batch_size", "2"),
    )
    assert two == 0, text
    assert json.loads((workplace / "two" / "run.json").read_text())["world_size"] == 2
    for key in ("loss", "grad_norm"):
        difference = torch.tensor(logged(workplace / "one", key)) - torch.tensor(logged(workplace / "two", key))
        assert difference.abs().max() < 1e-3
    assert {path.name for path in (workplace / "two" / "checkpoint-4").glob("rng_state*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }


@pytest.mark.trials
@pytest.mark.slow
def test_wrong_use_found_only_by_the_ranks_is_still_one_sentence_and_code_2(workplace):
    code, text = launch(
        *("hf_recipes.cli.main", "sft", "--config", "recipe.yaml", "--output_dir", "run", "--num_processes", "2"),
        *("--lora_target_modules", "q_prj"),
    )
    assert code == 2, text
    assert text.count("hf-recipes: lora_target_modules: 'q_prj' is no module") == 1
    assert "Traceback" not in text


@pytest.mark.slow
@pytest.mark.trials
def test_fewer_ranks_than_asked_stop_the_run_with_the_cure(workplace):
    code, text = launch(
        *("accelerate.commands.launch", "--cpu", "--num_processes", "2", "-m", "hf_recipes.sft"),
        *("--config", "recipe.yaml", "--output_dir", "run", "--num_processes", "2"),
    )
    assert code != 0
    assert "2 processes were asked for, 1 came up: start with `hf-recipes sft --num_processes 2`" in text
