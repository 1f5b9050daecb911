"""Whole profiles of a tiny model."""

from __future__ import annotations

import json
import time

import pytest
from tiny_models import make_tiny_llama
from transformers import AutoTokenizer, TrainerCallback

from hf_recipes.core.errors import CheckFailed
from hf_recipes.profiling import run as profiling_run
from hf_recipes.profiling.advice import answers
from hf_recipes.profiling.intervals import merged, total
from hf_recipes.profiling.phases import step_windows
from hf_recipes.profiling.recorder import StepRecorder
from hf_recipes.profiling.run import profile_recipe
from hf_recipes.profiling.trace import read_trace
from hf_recipes.recipe.resolve import load_recipe

STEPS = 3


@pytest.fixture
def recipe(tiny_model_dir, tmp_path, monkeypatch):
    """A recipe of forty rows in the working directory: arguments → `Recipe`."""
    monkeypatch.chdir(tmp_path)
    rows = [{"instruction": f"Say {'many ' * (i % 9)}{i}", "output": f"It is {i * 7 % 10}."} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(
        f"model_name_or_path: {tiny_model_dir}\ndatasets: [{{path: rows.jsonl}}]\neval_share: 0\n"
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 2\nlogging_steps: 1\n"
        "train_sampling_strategy: random\n"
    )
    return lambda *arguments: load_recipe("recipe.yaml", arguments)


class Witness(TrainerCallback):
    """Counts what the trainer is really given, beside the recorder."""

    def __init__(self):
        self.batches = []
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())


@pytest.fixture
def witnessed(monkeypatch):
    """The trainer of the profile as it is built, with a witness among its callbacks and around its loss."""
    witness, build = Witness(), profiling_run.build_run

    def build_and_watch(setup):
        built = build(setup)
        compute_loss = built.trainer.compute_loss

        def watched(model, inputs, *args, **kwargs):
            witness.batches.append({name: values.clone() for name, values in inputs.items()})
            return compute_loss(model, inputs, *args, **kwargs)

        built.trainer.compute_loss = watched
        built.trainer.add_callback(witness)
        return built

    monkeypatch.setattr(profiling_run, "build_run", build_and_watch)
    return witness


def test_phases_sum_to_the_wall_time_and_counts_are_those_of_the_batches(recipe, witnessed, tmp_path):
    profile = profile_recipe(recipe(), STEPS, tmp_path / "run", tmp_path / "trace.json")
    trace = read_trace(tmp_path / "trace.json")
    assert len(witnessed.ends) == StepRecorder.needed_steps(STEPS)
    assert len(step_windows(trace)) == STEPS

    # By the witness's own clock, from the end of the last untraced step on; starting the tracer lies in between.
    whole = sum(row.seconds for row in profile.phases if not row.part) * STEPS
    assert whole == pytest.approx(total(merged(step_windows(trace))) / 1e6)
    last_steps = witnessed.ends[-1] - witnessed.ends[-STEPS]  # all but the first traced step
    windows = sum(end - start for start, end in step_windows(trace)[1:]) / 1e6
    assert windows == pytest.approx(last_steps, rel=0.2)
    for phase in ("data", "forward", "loss", "backward", "optimizer", "other"):
        assert profile.share(phase) > 0, phase
    assert profile.share("communication") == 0

    timed = witnessed.batches[2 * 2 : (2 + STEPS) * 2]  # two micro-batches a step, two steps of warm-up
    assert all(batch.keys() == {"input_ids", "labels"} for batch in timed)
    seconds = profile.throughput.step_seconds * STEPS
    positions = sum(batch["input_ids"].numel() for batch in timed)
    supervised = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in timed)
    assert profile.throughput.positions * seconds == pytest.approx(positions)
    assert profile.throughput.supervised_tokens * seconds == pytest.approx(supervised)
    # Every answer ends with its learned end of turn, so a row's tokens end with its last label or the template's
    # newline after it.
    last = sum(int((row != -100).nonzero().max()) + 1 for batch in timed for row in batch["labels"])
    tokens = round(profile.throughput.tokens * seconds)
    assert last <= tokens <= last + sum(len(batch["labels"]) for batch in timed)
    assert 0 < profile.padding_share < 1
    assert sum(1 for op in trace.ops if op.name.startswith("autograd::engine::evaluate_function: MmBackward")) > 0
    assert profile.attention_calls == STEPS * 2 * 2  # micro-batches and layers
    assert profile.masked_attention_calls == 0
    assert profile.peak_bytes > 4 * 40_000  # more than the fp32 weights
    assert profile.throughput.useful_flops < profile.throughput.computed_flops
    json.dumps(profile.as_dict())


def test_fp32_is_told_and_bf16_autocast_seen_in_the_products(recipe, tmp_path):
    plain = profile_recipe(recipe("--bf16", "false", "--dtype", "fp32"), 1, tmp_path / "a", tmp_path / "a.json")
    mixed = profile_recipe(recipe("--bf16", "true", "--dtype", "fp32"), 1, tmp_path / "b", tmp_path / "b.json")
    assert plain.matmul_dtypes == {"float32": 1.0}
    assert plain.setting.autocast is None
    # Rotary angles stay in fp32 on purpose.
    assert mixed.matmul_dtypes["bfloat16"] > 0.95
    assert (mixed.setting.weights, mixed.setting.autocast) == ("float32", "bfloat16")


@pytest.mark.trials
def test_packing_checkpointing_and_eager_attention_are_seen(recipe, tmp_path):
    keys = ("--attn_implementation", "eager", "--activation_checkpointing", "true", "--lora_dropout", "0.1")
    profile = profile_recipe(recipe(*keys), 1, tmp_path / "run")
    assert (profile.setting.attention, profile.attention_calls) == ("eager", 0)
    assert profile.setting.checkpointing
    assert profile.setting.dropout == 0.1 and profile.dropout_share > 0
    assert profile.trace is None


@pytest.mark.trials
def test_a_stream_that_ends_within_the_steps_begins_anew(recipe, witnessed, tmp_path):
    # Forty rows are three steps of 2 × 8; the run needs four.
    profile = profile_recipe(recipe("--streaming", "true", "--per_device_train_batch_size", "8"), 1, tmp_path / "run")
    assert len(witnessed.ends) == StepRecorder.needed_steps(1)
    assert profile.throughput.tokens > 0 and profile.attention_calls > 0


@pytest.mark.trials
def test_padding_left_by_grouping_is_computed_from_the_lengths(recipe, tmp_path):
    found = profile_recipe(recipe("--packing", "false"), 1, tmp_path / "a").setting
    assert (found.packing, found.can_pack, found.streaming) == (False, True, False)
    assert 0 < found.grouped_padding_share < 1
    packed = profile_recipe(recipe("--packing", "true", "--max_length", "256"), 1, tmp_path / "b").setting
    assert (packed.packing, packed.can_pack, packed.grouped_padding_share) == (True, True, None)


@pytest.mark.trials
def test_a_prefix_cannot_be_packed_and_brings_its_mask(recipe, tmp_path):
    profile = profile_recipe(recipe("--method", "prefix"), 1, tmp_path / "run")
    assert not profile.setting.can_pack
    assert profile.masked_attention_calls == profile.attention_calls > 0
    (mask,) = [answer for answer in answers(profile) if "without a mask" in answer.question]
    assert mask.advice.startswith("method: prefix masks its own virtual tokens")


@pytest.mark.trials
def test_keys_of_a_whole_run_are_told_to_have_no_effect(recipe, tmp_path, caplog):
    keys = ("--max_steps", "50", "--output_dir", "runs/x", "--resume_from_checkpoint", "last")
    caplog.set_level("WARNING", "hf_recipes")
    profile_recipe(recipe(*keys), 1, tmp_path / "run")
    (told,) = [text for text in caplog.messages if "Without effect on a profile" in text]
    assert told == (
        "Without effect on a profile: output_dir (nothing is kept but what --output and --trace ask for), max_steps "
        "(--steps says how many are measured), resume_from_checkpoint (the steps start from the model)."
    )
    assert not (tmp_path / "runs").exists()


def test_a_run_that_a_watcher_stops_is_a_failed_check(recipe, tiny_model_dir, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    model = make_tiny_llama(len(tokenizer), tied=False)
    model.get_output_embeddings().weight.data[:] = float("nan")
    model.save_pretrained(tmp_path / "poisoned")
    tokenizer.save_pretrained(tmp_path / "poisoned")
    with pytest.raises(CheckFailed, match="training was stopped: "):
        profile_recipe(recipe("--model_name_or_path", str(tmp_path / "poisoned")), 2, tmp_path / "run")
