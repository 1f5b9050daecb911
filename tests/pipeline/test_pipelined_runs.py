"""A recipe trained by a pipeline of real processes takes the steps of one process with the same global batch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from decoders import make_decoder
from forked_ranks import TESTS, ForkedRanks
from pipeline_jobs import logs_of
from tiny_models import make_tiny_llama

from hf_recipes.training.rank_group import find_ranks

STEPS = 12
LORA = ("--method", "lora", "--lora_target_modules", "[q_proj, o_proj, down_proj]")
# name → ranks, keys. Eight rows a step everywhere: 54 rows make 7 steps an epoch, the last of them short.
LAYOUTS = {
    "PP 2, 1f1b": (2, ()),
    "PP 2, gpipe": (2, ("--pipeline_schedule", "gpipe")),
    "PP 4": (4, ()),
    "PP 2 × DP 2": (4, ("--pipeline_parallel_size", "2", "--gradient_accumulation_steps", "2")),
    "TP 2 × PP 2": (4, ("--pipeline_parallel_size", "2", "--tensor_parallel_size", "2")),
    "TP 2 × PP 2 × DP 2": (
        8,
        ("--pipeline_parallel_size", "2", "--tensor_parallel_size", "2", "--gradient_accumulation_steps", "2"),
    ),
}


@pytest.fixture(scope="module")
def ranks():
    server = ForkedRanks()
    yield server
    server.close()


@pytest.fixture(scope="module")
def recipe(tokenizer, tmp_path_factory):
    """A recipe of a four-layer Llama with tied embeddings; rows of unequal length, some of them to evaluate on."""
    folder = tmp_path_factory.mktemp("pipelined")
    make_tiny_llama(len(tokenizer), num_hidden_layers=4).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    rows = [{"instruction": f"Say {i}", "output": f"It is {i * 7 % 10}. " * (1 + i % 3)} for i in range(60)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "model_name_or_path": str(folder / "base"),
        "datasets": [{"path": str(folder / "data.jsonl")}],
        "method": "full",
        "bf16": False,
        "lora_dropout": 0.0,
        "learning_rate": 3e-3,
        "max_steps": STEPS,
        "overfit_check": "off",
        "logging_steps": 1,
        "save_steps": 5,
        "eval_steps": 5,
        "disable_tqdm": True,
        "watch": {"live_report": False},
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
    }
    (folder / "recipe.yaml").write_text(json.dumps(values))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def alone(ranks, recipe, tmp_path_factory):
    """The run directory of one process, the ordinary Trainer, by its keys."""
    known = {}

    def run(keys=()):
        if keys not in known:
            known[keys] = tmp_path_factory.mktemp("alone") / "run"
            assert ranks.run(1, "pipeline_jobs:train_recipe", known[keys], str(recipe), *keys) == [[0, ""]]
        return known[keys]

    return run


def pipelined(ranks, recipe, directory, layout, *keys, job="train_recipe"):
    count, sizes = LAYOUTS[layout]
    return ranks.run(count, f"pipeline_jobs:{job}", directory, str(recipe), "--strategy", "pp", *sizes, *keys)


def check_same(run, expected, tolerance=1e-3):
    """Losses, gradient norms and rates of all steps; gives the largest differences of loss and norm."""
    found, wanted = (logs_of(each, STEPS, "loss", "grad_norm", "learning_rate") for each in (run, expected))
    assert sorted(found) == sorted(wanted) == list(range(1, STEPS + 1))
    apart = [[abs(a - b) for a, b in zip(found[step], wanted[step], strict=True)] for step in wanted]
    largest = [max(column) for column in zip(*apart, strict=True)]
    assert largest[0] < tolerance and largest[1] < tolerance, largest
    assert largest[2] == 0
    assert len({loss for loss, *_ in wanted.values()}) == STEPS  # it learns: a frozen model would pass too
    return largest


def check_result(answers, tolerance=1e-5):
    """The stages in memory are what is on disk, to the bit, and transformers computes the same with it."""
    assert [answer["ended"] for answer in answers] == [[0, ""]] * len(answers)
    assert [answer["apart"] for answer in answers] == [0.0] * len(answers)
    last = [answer for answer in answers if answer["last"]]
    assert all(answer["live"] == pytest.approx(answer["loaded"], abs=tolerance) for answer in last)


@pytest.mark.slow
def test_a_pipeline_of_two_stages_takes_the_steps_of_one_process(ranks, recipe, alone, tmp_path):
    run, expected = tmp_path / "run", alone()
    check_result(pipelined(ranks, recipe, run, "PP 2, 1f1b", job="train_and_look"))
    check_same(run, expected, 1e-5)
    check_files_alike(run, expected)
    record = json.loads((run / "run.json").read_text())
    before = json.loads((expected / "run.json").read_text())
    assert record["pipeline"] == {"stages": 2, "replicas": 1, "shards": 1, "schedule": "1f1b"}
    for key in ("world_size", "global_batch_size", "trainable_parameters", "total_parameters"):
        assert record[key] == (2 if key == "world_size" else before[key])
    assert json.loads((run / "status.json").read_text())["code"] == 0
    checkpoints = [f"checkpoint-{step}" for step in (5, 10, 12)]
    assert sorted(path.name for path in run.glob("checkpoint-*")) == sorted(checkpoints)
    assert all(json.loads((run / name / "verified.json").read_text())["ok"] for name in checkpoints)


def check_files_alike(run, expected):
    """Config, generation config and tensor names are what the Trainer leaves; weights differ by rounding."""
    from safetensors.torch import load_file

    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (run / "model" / name).read_text() == (expected / "model" / name).read_text()
    tensors = [{}, {}]
    for found, folder in zip(tensors, (run, expected), strict=True):
        for file in (folder / "model").glob("*.safetensors"):
            found.update(load_file(file))
    assert sorted(tensors[0]) == sorted(tensors[1])
    assert all((tensors[0][name] - tensors[1][name]).abs().max() < 1e-4 for name in tensors[0])


@pytest.mark.slow
@pytest.mark.trials
def test_the_mean_loss_of_a_run_is_of_all_its_steps_logged_or_not(ranks, recipe, alone, tmp_path):
    run = tmp_path / "run"
    assert pipelined(ranks, recipe, run, "PP 2, 1f1b", "--logging_steps", "5") == [[0, ""]] * 2
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (told,) = [event["train_loss"] for event in events if "train_loss" in event]
    each = [loss for (loss,) in logs_of(alone(), STEPS, "loss").values()]
    assert told == pytest.approx(sum(each) / STEPS, abs=1e-4)


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("method", [(), LORA], ids=["full", "lora"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_takes_the_steps_of_one_process(layout, method, ranks, recipe, alone, tmp_path):
    check_result(pipelined(ranks, recipe, tmp_path / "run", layout, *method, job="train_and_look"))
    check_same(tmp_path / "run", alone(method))


@pytest.mark.slow
@pytest.mark.trials
def test_lora_leaves_the_adapter_that_peft_leaves(ranks, recipe, alone, tmp_path):
    from safetensors.torch import load_file

    pipelined(ranks, recipe, tmp_path / "run", "PP 2, 1f1b", *LORA)
    found, expected = (run / "adapter" for run in (tmp_path / "run", alone(LORA)))
    assert json.loads((found / "adapter_config.json").read_text()) == json.loads(
        (expected / "adapter_config.json").read_text()
    )
    tensors, wanted = (load_file(folder / "adapter_model.safetensors") for folder in (found, expected))
    assert sorted(tensors) == sorted(wanted)
    assert all((tensors[name] - wanted[name]).abs().max() < 1e-4 for name in wanted)


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("keys", [("--bf16", "true"), ("--activation_checkpointing", "true"), ("--tied", "false")])
def test_precision_and_checkpointing_and_untied_heads(keys, ranks, recipe, alone, tokenizer, tmp_path):
    tolerance = 0.03 if "--bf16" in keys else 1e-3
    if "--tied" in keys:
        make_tiny_llama(len(tokenizer), num_hidden_layers=4, tied=False).save_pretrained(tmp_path / "base")
        tokenizer.save_pretrained(tmp_path / "base")
        keys = ("--model_name_or_path", str(tmp_path / "base"))
    answers = pipelined(ranks, recipe, tmp_path / "run", "PP 2, 1f1b", *keys, job="train_and_look")
    check_result(answers, 0.03 if "--bf16" in keys else 1e-5)  # loaded in fp32
    check_same(tmp_path / "run", alone(keys), tolerance)


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("kind", ["mistral", "qwen2", "qwen3"])
def test_other_decoders_in_shards_and_stages(kind, ranks, recipe, alone, tokenizer, tmp_path):
    """Windows, biases that are shared among ranks, norms of heads whose gradients are summed over the shards."""
    base = tmp_path / "base"
    make_decoder(kind, len(tokenizer)).save_pretrained(base)
    tokenizer.save_pretrained(base)
    keys = ("--model_name_or_path", str(base))
    check_result(pipelined(ranks, recipe, tmp_path / "run", "TP 2 × PP 2", *keys, job="train_and_look"))
    check_same(tmp_path / "run", alone(keys))


def cut_off(run, copy, step):
    """A run as a kill after the checkpoint of `step` leaves it."""
    shutil.copytree(run, copy)
    for checkpoint in copy.glob("checkpoint-*"):
        if int(checkpoint.name.partition("-")[2]) > step:
            shutil.rmtree(checkpoint)
    for result in ("model", "adapter"):
        shutil.rmtree(copy / result, ignore_errors=True)
    (copy / "status.json").unlink()
    return copy


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("method", [(), (*LORA, "--lora_dropout", "0.1")], ids=["full", "lora"])
def test_c4_a_resumed_pipeline_goes_on_as_the_unbroken_one(method, ranks, recipe, tmp_path):
    pipelined(ranks, recipe, tmp_path / "whole", "PP 2 × DP 2", *method)
    resumed = cut_off(tmp_path / "whole", tmp_path / "resumed", 5)
    keys = ("--resume_from_checkpoint", "last")
    assert pipelined(ranks, recipe, resumed, "PP 2 × DP 2", *method, *keys) == [[0, ""]] * 4
    assert logs_of(resumed, STEPS, "loss", "grad_norm") == logs_of(tmp_path / "whole", STEPS, "loss", "grad_norm")
    (place,) = [folder for folder in ("model", "adapter") if (resumed / folder).is_dir()]
    for file in (resumed / place).glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "whole" / place / file.name).read_bytes()


@pytest.mark.slow
@pytest.mark.trials
def test_c6_a_pipeline_goes_on_in_another_layout(ranks, recipe, alone, tmp_path):
    """Names are those of the whole model, so optimizer states are found by any stage or shard; the global batch is
    kept."""
    pipelined(ranks, recipe, tmp_path / "run", "PP 2, 1f1b")
    for number, layout in enumerate(("TP 2 × PP 2 × DP 2", "PP 4")):
        resumed = cut_off(tmp_path / "run", tmp_path / f"resumed{number}", 5)
        answers = pipelined(ranks, recipe, resumed, layout, "--resume_from_checkpoint", "last")
        assert all(answer == [0, ""] for answer in answers)
        check_same(resumed, alone())


@pytest.mark.slow
@pytest.mark.trials
def test_a_checkpoint_of_the_trainer_is_refused(ranks, recipe, alone, tmp_path):
    run = cut_off(alone(), tmp_path / "run", 5)
    answers = pipelined(ranks, recipe, run, "PP 2, 1f1b", "--resume_from_checkpoint", "last")
    assert all(code == 2 and "a pipeline cannot read that optimizer state" in sentence for code, sentence in answers), (
        answers
    )


@pytest.mark.slow
@pytest.mark.trials
def test_a_norm_that_is_not_finite_ends_the_run_on_all_ranks(ranks, recipe, tokenizer, tmp_path):
    model = make_tiny_llama(len(tokenizer), num_hidden_layers=4)
    torch.nn.init.constant_(model.model.norm.weight, 3e38)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    keys = ("--model_name_or_path", str(tmp_path / "base"))
    answers = pipelined(ranks, recipe, tmp_path / "run", "PP 2 × DP 2", *keys)
    assert {code for code, _ in answers} == {1}
    assert len({sentence for _, sentence in answers}) == 1
    assert "step 1 has loss" in answers[0][1] and "nothing of it reached the weights" in answers[0][1]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["detector"] == "non_finite"


@pytest.mark.slow
@pytest.mark.trials
def test_what_does_not_fit_is_one_sentence(ranks, recipe, tmp_path):
    for keys, words in (
        (("--lora_target_modules", "[q_proj, embed_tokens]", "--method", "lora"), "names embed_tokens: remove it"),
        (("--gradient_accumulation_steps", "1"), "at least as many micro-batches"),
    ):
        answers = pipelined(ranks, recipe, tmp_path / keys[-1], "PP 2, 1f1b", *keys)
        assert all(code == 2 and words in sentence for code, sentence in answers), answers


@pytest.mark.slow
@pytest.mark.trials
def test_t_killed_and_resumed_by_the_command_line(recipe, alone, tmp_path):
    """`hf-recipes sft` starts stages × replicas, is killed with all its ranks, and goes on where it was."""
    run, keys = tmp_path / "run", ("--lr_scheduler_type", "constant", "--warmup_steps", "0")
    keys = (*keys, "--watch.live_report", "true")
    first = start(recipe, run, *keys, "--max_steps", "400")
    verified = run / "checkpoint-10" / "verified.json"
    deadline = time.monotonic() + 600
    while not verified.is_file() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert verified.is_file()
    while find_ranks("hf_recipes.sft", str(first.pid)):  # they leave when they see that it is gone
        time.sleep(0.2)
    second = start(recipe, run, *keys, "--resume_from_checkpoint", str(run / "checkpoint-5"))
    assert second.wait(600) == 0
    status = json.loads((run / "status.json").read_text())
    assert (status["code"], status["last_step"]) == (0, STEPS)
    check_same(run, alone(keys))


def start(recipe, run, *keys):
    _, sizes = LAYOUTS["PP 2 × DP 2"]
    words = ["sft", "--config", str(recipe), "--num_processes", "4", "--strategy", "pp", "--output_dir", str(run)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, "-m", "hf_recipes.cli.main", *words, *sizes, *keys]
    return subprocess.Popen(command, env=environment, start_new_session=True, cwd=Path(run).parent)
