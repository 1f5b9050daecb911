"""`ThroughputWatch` in real runs: what it measures, and when it speaks."""

from __future__ import annotations

import logging
import time

import pytest
import torch
from tiny_models import make_tiny_llama
from transformers import TrainerCallback
from watch_helpers import PoisonModel, make_trainer, rows

from hf_recipes.callbacks.throughput import ThroughputWatch
from hf_recipes.core.events import read_events

METRICS = {
    "tokens_per_second",
    "supervised_tokens_per_second",
    "step_seconds",
    "data_wait_share",
    "cpu_utilization",
    "memory_gb",
    "memory_total_gb",
}


class Clock:
    """Stands in for `time` in the watch and in what is watched: passes only when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds

    def perf_counter(self):
        return self.now

    process_time = perf_counter


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("hf_recipes.callbacks.throughput.time", clock)
    monkeypatch.setattr("hf_recipes.callbacks.throughput._queued_seconds", lambda: 0.0)
    return clock


class SlowRows(torch.utils.data.Dataset):
    """Rows that take `seconds` to get."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.rows = clock, seconds, rows(64)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.clock.sleep(self.seconds)
        return self.rows[index]


class SlowModel(PoisonModel):
    """A forward pass that takes `before` seconds, and `after` from call number `turn` on."""

    def __init__(self, clock, before, after=0.0, turn=10**9):
        super().__init__()
        self.clock, self.before, self.after, self.turn, self.calls = clock, before, after, turn, 0

    def forward(self, input_ids, labels):
        self.calls += self.training
        self.clock.sleep(self.before if self.calls < self.turn else self.after)
        return super().forward(input_ids, labels)


def logs(trainer):
    return [log for log in trainer.state.log_history if "loss" in log]


def events(directory, kind):
    return [event for event in read_events(directory) if event["kind"] == kind]


def test_what_is_counted(tmp_path):
    data = rows(64)
    for row in data:
        row["labels"][:2] = -100
    batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainer = make_trainer(tmp_path, [ThroughputWatch()], data, SlowModel(time, 0.02), logging_steps=2, **batches)
    trainer.train()
    assert len(logs(trainer)) == 2
    for log in logs(trainer):
        assert set(log) >= METRICS
        # A step has 2 × 4 rows of 6 tokens, 4 of them supervised, and lasts at least two naps of 0.02 s.
        assert log["tokens_per_second"] * log["step_seconds"] == pytest.approx(48)
        assert log["supervised_tokens_per_second"] * log["step_seconds"] == pytest.approx(32)
        assert log["step_seconds"] >= 0.04
        assert 0 < log["memory_gb"] < log["memory_total_gb"]
        assert "mfu" not in log and "gpu_utilization" not in log


def test_evaluation_saving_and_logging_are_not_waiting_for_data(tmp_path, clock):
    class SlowEverythingElse(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            clock.sleep(100)

        on_save = on_log = on_evaluate

    trainer = make_trainer(
        tmp_path,
        [ThroughputWatch(), SlowEverythingElse()],
        SlowRows(clock, 0.25),
        SlowModel(clock, 0.75),
        max_steps=12,
        logging_steps=4,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=6,
    )
    trainer.train()
    for log in logs(trainer):
        assert log["data_wait_share"] == pytest.approx(0.25)
        assert log["step_seconds"] == pytest.approx(1.0)


@pytest.mark.parametrize("logging_steps", [1, 10])
def test_waiting_for_batches_rings_once_whatever_is_logged(logging_steps, tmp_path, clock, caplog):
    data, model = SlowRows(clock, 0.25), SlowModel(clock, 0.75)
    trainer = make_trainer(tmp_path, [ThroughputWatch()], data, model, max_steps=60, logging_steps=logging_steps)
    with caplog.at_level(logging.INFO, logger="hf_recipes"):
        trainer.train()
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["detector"], alarm["verdict"], alarm["data_wait_share"]) == ("throughput", "data_wait", 0.25)
    # 20 waits of 0.25 s; the first step has none, and where not every step is logged, steps after a log have none.
    assert alarm["step"] == (21 if logging_steps == 1 else 23)
    assert alarm["seconds"] == 5
    assert "dataloader_num_workers" in alarm["message"]
    (note,) = events(tmp_path, "note")
    assert "25% of the time waiting for batches" in note["message"]
    assert "Batches limit it" in note["message"]
    assert note["message"] in caplog.text


def test_a_lasting_slow_down_rings_once(tmp_path, clock):
    model = SlowModel(clock, 1.0, 3.0, turn=61)
    trainer = make_trainer(tmp_path, [ThroughputWatch()], model=model, max_steps=120, logging_steps=10)
    trainer.train()
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["detector"], alarm["verdict"]) == ("throughput", "slower")
    assert alarm["step"] == 61 + 12  # 13 of the last 25 steps are slow
    assert alarm["factor"] == 3
    assert alarm["seconds"] == 13 * 2


def test_a_busy_machine_is_no_slow_down(tmp_path, clock, monkeypatch):
    """The same slow steps, but all of what they take longer another process had the CPU."""
    queued = [0.0]

    class Queued(SlowModel):
        def forward(self, input_ids, labels):
            queued[0] += 2.0 if self.calls >= self.turn - 1 else 0.0
            return super().forward(input_ids, labels)

    monkeypatch.setattr("hf_recipes.callbacks.throughput._queued_seconds", lambda: queued[0])
    model = Queued(clock, 1.0, 3.0, turn=61)
    make_trainer(tmp_path, [ThroughputWatch()], model=model, max_steps=120, logging_steps=10).train()
    assert events(tmp_path, "alarm") == []


def test_a_healthy_run_gets_a_note_and_no_alarm(tmp_path):
    watch = ThroughputWatch()
    trainer = make_trainer(tmp_path, [watch], model=SlowModel(time, 0.01), max_steps=60, logging_steps=10)
    trainer.train()
    assert events(tmp_path, "alarm") == []
    (note,) = events(tmp_path, "note")
    assert (note["detector"], note["target"]) == ("throughput", 0.8)
    assert note["tokens_per_second"] > 0
    assert note["limit"]  # naps are no use of a CPU
    trainer.train()  # afresh
    assert len(watch._logged) == 6


def test_an_evaluation_before_training_is_let_through(tmp_path):
    trainer = make_trainer(tmp_path, [ThroughputWatch()])
    assert "tokens_per_second" not in trainer.evaluate()


def test_mfu_is_the_arithmetic_of_the_positions_of_the_peak_given(tmp_path):
    data = [{"input_ids": row["input_ids"], "labels": row["input_ids"].clone()} for row in rows(64)]
    model = make_tiny_llama(512)
    trainer = make_trainer(tmp_path, [ThroughputWatch(peak_flops=1e12)], data, model, per_device_train_batch_size=2)
    trainer.train()
    # Full fine-tuning: 6 FLOPs a weight of a matrix product and position; two layers and the (tied) head.
    layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32
    a_position = 6 * (2 * layer + 512 * 32)
    for log in logs(trainer):
        assert log["mfu"] == pytest.approx(log["tokens_per_second"] * a_position / 1e12, rel=1e-3)
    assert "MFU" in events(tmp_path, "note")[0]["message"]


def test_a_model_of_unknown_arithmetic_has_no_mfu(tmp_path):
    trainer = make_trainer(tmp_path, [ThroughputWatch(peak_flops=1e12)])
    trainer.train()
    assert all("mfu" not in log for log in logs(trainer))


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    data = [{"input_ids": row["input_ids"], "labels": row["input_ids"].clone()} for row in rows(64)]
    trainer = make_trainer(tmp_path, [ThroughputWatch(peak_flops=1e15)], data, make_tiny_llama(512), use_cpu=False)
    trainer.train()
    for log in logs(trainer):
        assert 0 < log["memory_gb"] < log["memory_total_gb"]
        assert 0 < log["mfu"] < 1
