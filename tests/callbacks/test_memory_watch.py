"""`MemoryWatch` on real memory of real runs."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from transformers import TrainerCallback
from watch_helpers import PoisonModel, make_trainer, rows

from hf_recipes.callbacks.memory_watch import MemoryWatch, leak_sentence, memory_total_bytes
from hf_recipes.core.events import read_events


class Hoard(TrainerCallback):
    """Keeps `megabytes` more at each step from `start` on, as one who collects tensors in a list."""

    def __init__(self, start, megabytes):
        self.start, self.elements, self.kept = start, int(megabytes * 1e6 / 4), []

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= self.start:
            self.kept.append(torch.ones(self.elements))


def alarms(directory):
    return [event for event in read_events(directory) if event["kind"] == "alarm"]


def run(directory, callbacks, steps, **arguments):
    arguments = {"eval_strategy": "steps", "eval_steps": 20, "logging_steps": 10, **arguments}
    trainer = make_trainer(directory, callbacks, rows(64), max_steps=steps, **arguments)
    trainer.train()
    return trainer


def in_a_process_of_its_own(train, *arguments):
    """A process that has run many tests has freed memory to give: a leak then takes that first, unseen from outside."""
    process = multiprocessing.get_context("spawn").Process(target=train, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def hoard(directory):
    run(directory, [MemoryWatch(), Hoard(40, 4)], 140)


@pytest.mark.trials
def test_a_leak_is_named_within_50_steps(tmp_path):
    in_a_process_of_its_own(hoard, tmp_path)
    (alarm,) = alarms(tmp_path)
    assert 40 < alarm["step"] <= 90
    assert (alarm["detector"], alarm["verdict"], alarm["where"], alarm["rank"]) == ("memory", "leak", "host", 0)
    assert alarm["mb_a_step"] == pytest.approx(4, rel=0.3)
    assert alarm["steps_until_full"] == pytest.approx(
        (alarm["total_gb"] - alarm["used_gb"]) * 1e3 / alarm["mb_a_step"], abs=1
    )
    assert "host memory of rank 0 grows by" in alarm["message"]


def test_a_healthy_run_is_left_alone_and_a_second_begins_afresh(tmp_path):
    watch = MemoryWatch()
    trainer = run(tmp_path, [watch], 400, save_strategy="steps", save_steps=50, save_total_limit=1)
    trainer.train()
    assert alarms(tmp_path) == []
    assert watch._detectors["host"][0].seen == 400


class GrowingGraph(PoisonModel):
    """Sums up its losses without detaching them, the usual leak: every step's graph stays."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(())

    def forward(self, input_ids, labels):
        wide = self.embedding(input_ids).repeat(1, 1, 4000).exp()  # 6 tokens × 64,000 × 4 bytes, kept for backward
        output = super().forward(input_ids, labels)
        self.total = self.total + wide.mean()
        return output


def grow_graph(directory):
    make_trainer(directory, [MemoryWatch()], rows(64), GrowingGraph(), max_steps=100, logging_steps=10).train()


@pytest.mark.trials
def test_losses_kept_with_their_graph_are_a_leak(tmp_path):
    in_a_process_of_its_own(grow_graph, tmp_path)
    (alarm,) = alarms(tmp_path)
    assert alarm["step"] <= 16 + 50  # the first 16 steps are warm-up


def test_the_sentence_tells_rate_time_left_and_causes():
    sentence = leak_sentence(41, 1, "GPU", 30e9, 80e9, 25e6, 2000)
    assert sentence.startswith("Step 41: GPU memory of rank 1 grows by 25 MB a step without coming back: 30 of 80 GB")
    assert "about 2,000 steps" in sentence
    assert "loss.item()" in sentence


def test_the_total_is_what_the_container_may_use(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(
        "hf_recipes.core.container_memory.CGROUP_FILES", ((limit, tmp_path / "absent", "inactive_file"),)
    )
    whole = memory_total_bytes(torch.device("cpu"))
    limit.write_text("max\n")
    assert memory_total_bytes(torch.device("cpu")) == whole
    limit.write_text("1000000\n")
    assert memory_total_bytes(torch.device("cpu")) == 1_000_000
