"""`PreemptionGuard` in real Trainer runs of this process, stopped by real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time

import psutil
import pytest
from checkpoint_helpers import LossRecorder, make_trainer, read_losses
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from hf_recipes.checkpoints.choose import last_good_checkpoint, resolve_resume
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import read_verified
from hf_recipes.checkpoints.preemption.guard import PreemptionGuard, cut_evaluations
from hf_recipes.checkpoints.preemption.notice import NoticePoll
from hf_recipes.core.errors import UserError
from hf_recipes.core.events import read_events
from hf_recipes.core.stop_signals import is_awaited

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class At(TrainerCallback):
    """Does something once, at one event of one step; and counts how often each event came."""

    def __init__(self, event, step, action):
        self.seen = {}
        for name in ("on_save", "on_evaluate", "on_prediction_step", "on_step_begin", "on_step_end", "on_train_begin"):
            setattr(self, name, self._counting(name, name == event, step, action))

    def _counting(self, name, acts, step, action):
        def at_event(args, state, control, **kwargs):
            self.seen[name] = self.seen.get(name, 0) + 1
            if acts and state.global_step == step and not self.seen.get("acted"):
                self.seen["acted"] = True
                action()

        return at_event


def send(number):
    return lambda: os.kill(os.getpid(), number)


def checkpoints(output):
    return sorted(path.name for path in output.glob("checkpoint-*"))


def stopped_run(output, event, step, action, *, guard=None, more=(), evaluates=None, cuts=False, **arguments):
    """A run of six steps that saves nothing by itself: what was counted, the guard, the trainer."""
    at, guard = At(event, step, action), guard or PreemptionGuard()
    trainer = make_trainer(output, [at, *more, guard], **{"max_steps": 6, "save_strategy": "no", **arguments})
    if evaluates:
        trainer.eval_dataset = trainer.train_dataset
        trainer.args.eval_strategy, trainer.args.eval_steps = IntervalStrategy.STEPS, evaluates
        trainer.args.per_device_eval_batch_size = 2
    if cuts:
        cut_evaluations(trainer)
    trainer.train()
    return at.seen, guard, trainer


@pytest.mark.parametrize("number", HANDLED)
def test_a_signal_stops_after_the_step_in_which_it_comes_with_one_save(number, tmp_path):
    before = [signal.getsignal(each) for each in HANDLED]
    keeper = CheckpointKeeper()
    seen, guard, trainer = stopped_run(tmp_path, "on_step_begin", 2, send(number), more=[keeper])
    assert guard.preempted == signal.Signals(number).name
    assert (trainer.state.global_step, keeper.failed) == (3, None)
    assert (seen["on_save"], checkpoints(tmp_path)) == (1, ["checkpoint-3"])
    assert read_verified(tmp_path / "checkpoint-3")["ok"]
    assert [signal.getsignal(each) for each in HANDLED] == before
    assert not is_awaited()
    (told,) = [event for event in read_events(tmp_path) if event.get("detector") == "preemption"]
    assert (told["kind"], told["step"], told["reason"]) == ("note", 3, guard.preempted)


@pytest.mark.parametrize("arguments", [{"save_strategy": "steps", "save_steps": 3}, {"save_strategy": "epoch"}])
def test_a_step_that_is_saved_anyway_is_saved_once(arguments, tmp_path):
    seen, _, trainer = stopped_run(tmp_path, "on_step_begin", 2, send(signal.SIGTERM), rows=12, **arguments)
    assert (trainer.state.global_step, seen["on_save"]) == (3, 1)
    assert trainer.state.epoch == 1  # the last step of an epoch


def test_a_signal_during_a_save_needs_no_other_step(tmp_path):
    seen, guard, trainer = stopped_run(
        tmp_path, "on_save", 2, send(signal.SIGTERM), save_strategy="steps", save_steps=2
    )
    assert (guard.preempted, trainer.state.global_step, seen["on_save"]) == ("SIGTERM", 2, 1)


def test_a_run_at_its_last_step_just_ends(tmp_path):
    seen, guard, trainer = stopped_run(
        tmp_path,
        "on_step_begin",
        5,
        send(signal.SIGTERM),
        save_strategy="steps",
        save_steps=100,
        evaluates=6,
    )
    assert (guard.preempted, trainer.state.global_step) == (None, 6)
    assert checkpoints(tmp_path) == ["checkpoint-6"]
    assert "on_evaluate" not in seen
    assert "ends as planned" in read_events(tmp_path)[-1]["message"]


def test_a_run_of_one_process_that_is_not_asked_is_not_changed(tmp_path):
    runs = []
    for callbacks in ([], [PreemptionGuard(deadline=time.time() + 1e6)]):
        trainer = make_trainer(tmp_path, callbacks, save_strategy="no", max_steps=4)
        trainer.train()
        runs.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
    assert runs[0] == runs[1]
    assert read_events(tmp_path) == []
    assert not [event for event in read_events(tmp_path) if event["kind"] in ("alarm", "note")]


def test_c4_losses_after_a_stop_and_a_resume_are_those_of_the_unbroken_run(tmp_path):
    make_trainer(tmp_path / "a", [LossRecorder(tmp_path / "whole")], save_strategy="no", max_steps=6).train()
    recorder = LossRecorder(tmp_path / "broken")
    stopped_run(
        tmp_path / "b",
        "on_step_begin",
        2,
        send(signal.SIGUSR1),
        more=[recorder, CheckpointKeeper()],
        gradient_accumulation_steps=1,
    )
    trainer = make_trainer(tmp_path / "b", [recorder], save_strategy="no", max_steps=6)
    trainer.train(resume_from_checkpoint=str(resolve_resume("last", tmp_path / "b")))
    assert read_losses(tmp_path / "broken") == read_losses(tmp_path / "whole")
    assert len(read_losses(tmp_path / "whole")) == 6


# --- evaluations


def evaluated_run(output, **settings):
    """A signal at the first of 32 batches of the evaluation after step 2."""
    sent = ("on_prediction_step", 2, send(signal.SIGTERM))
    seen, guard, trainer = stopped_run(output, *sent, evaluates=2, **settings)
    assert (guard.preempted, trainer.state.global_step) == ("SIGTERM", 2)
    assert (seen["on_save"], checkpoints(output)) == (1, ["checkpoint-2"])
    assert last_good_checkpoint(output).path == output / "checkpoint-2"
    return seen, trainer


def test_an_evaluation_is_broken_off_where_that_was_asked_for(tmp_path):
    seen, trainer = evaluated_run(tmp_path, cuts=True)
    assert (seen["on_prediction_step"], "on_evaluate" in seen) == (1, False)
    assert not [log for log in trainer.state.log_history if "eval_loss" in log]


def test_an_evaluation_is_otherwise_waited_for_and_no_step_is_taken_after_it(tmp_path):
    seen, _ = evaluated_run(tmp_path, cuts=False)
    assert (seen["on_prediction_step"], seen["on_evaluate"]) == (32, 1)


def test_an_evaluation_broken_off_is_never_the_best(tmp_path):
    seen, trainer = evaluated_run(tmp_path, cuts=True, metric_for_best_model="loss", save_strategy="best")
    assert seen["on_prediction_step"] == 1
    assert trainer.state.best_global_step is None


def test_c4_steps_after_an_evaluation_that_was_left_out_are_the_same(tmp_path):
    """The data loader of an evaluation draws a seed, and dropout draws after it."""
    losses = []
    for strategy in ("steps", "no"):
        recorder = LossRecorder(tmp_path / strategy)
        trainer = make_trainer(
            tmp_path, [recorder, PreemptionGuard()], max_steps=4, save_strategy="no", eval_strategy="no"
        )
        trainer.eval_dataset = trainer.train_dataset
        trainer.args.eval_strategy, trainer.args.eval_steps = IntervalStrategy(strategy), 1
        cut_evaluations(trainer)
        trainer.train()
        losses.append(read_losses(tmp_path / strategy))
    assert losses[0] == losses[1]


def test_an_evaluation_in_parts_is_broken_off_as_a_whole(tmp_path):
    at, guard = At("on_prediction_step", 2, send(signal.SIGTERM)), PreemptionGuard()
    trainer = make_trainer(tmp_path, [at, guard], max_steps=6, save_strategy="no")
    trainer.args.eval_strategy, trainer.args.eval_steps = IntervalStrategy.STEPS, 2
    trainer.eval_dataset = {"domain": trainer.train_dataset, "general": trainer.train_dataset}
    cut_evaluations(trainer)
    trainer.train()
    assert (at.seen["on_prediction_step"], checkpoints(tmp_path)) == (1, ["checkpoint-2"])
    assert trainer.evaluate(trainer.train_dataset)["eval_loss"] > 0  # outside of the training nothing is cut


# --- what else asks to stop


def test_a_deadline_stops_while_there_is_time_for_a_save(tmp_path):
    guard = PreemptionGuard(deadline=time.time() + 5, deadline_reason="time_limit 5s")
    _, guard, trainer = stopped_run(tmp_path, "", 0, None, guard=guard)
    assert (guard.preempted, trainer.state.global_step) == ("time_limit 5s", 1)
    assert checkpoints(tmp_path) == ["checkpoint-1"]


def test_the_notice_that_the_machine_goes_stops_the_run(tmp_path):
    notice = NoticePoll(f"test -f {tmp_path}/notice", 0.01)

    def give_notice():
        (tmp_path / "notice").touch()
        until = time.monotonic() + 30
        while not notice.noticed and time.monotonic() < until:
            time.sleep(0.01)

    guard = PreemptionGuard(notice=notice)
    _, guard, trainer = stopped_run(tmp_path, "on_step_begin", 2, give_notice, guard=guard)
    assert "notice" in guard.preempted
    assert trainer.state.global_step == 3


# --- who else is there


@pytest.mark.parametrize("until_closed", [True, False])
def test_a_signal_between_the_training_and_what_follows_it_is_remembered_where_that_was_asked_for(
    until_closed, tmp_path
):
    arrived = []
    before = signal.signal(signal.SIGTERM, lambda *_: arrived.append("as before"))
    try:
        guard = PreemptionGuard(until_closed=until_closed)
        make_trainer(tmp_path, [guard], save_strategy="no").train()
        os.kill(os.getpid(), signal.SIGTERM)
        assert guard.preempted is None
        assert is_awaited() == until_closed
        guard.close()
        assert not is_awaited()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert arrived == ["as before", "as before"]  # whoever stood below hears of it in any case


def test_no_time_at_all_after_sigterm_is_wrong_use():
    with pytest.raises(UserError, match="seconds above 0"):
        PreemptionGuard(grace_seconds=0)


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    def press_twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # a launcher that passes it on: the same press
        time.sleep(0.6)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stopped_run(tmp_path, "on_step_begin", 2, press_twice)
    signal.signal(signal.SIGINT, before)
    assert checkpoints(tmp_path) == []


def test_a_handler_that_was_there_is_called_too_and_comes_back(tmp_path):
    calls = []
    mine = lambda number, frame: calls.append(number)  # noqa: E731
    before = signal.signal(signal.SIGTERM, mine)
    try:
        _, guard, _ = stopped_run(tmp_path, "on_step_begin", 2, send(signal.SIGTERM))
        assert (guard.preempted, calls) == ("SIGTERM", [signal.SIGTERM])
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_process_that_ignores_a_signal_goes_on_ignoring_it(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        _, guard, trainer = stopped_run(tmp_path, "on_step_begin", 2, send(signal.SIGTERM))
        assert (guard.preempted, trainer.state.global_step) == (None, 6)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_trainers_own_checkpoint_at_sigterm_stands_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    seen, guard, trainer = stopped_run(tmp_path, "on_step_begin", 2, send(signal.SIGTERM), enable_jit_checkpoint=True)
    assert (guard.preempted, trainer.state.global_step, seen["on_save"]) == ("SIGTERM", 3, 1)
    assert checkpoints(tmp_path) == ["checkpoint-3"]
    assert "enable_jit_checkpoint has no effect" in read_events(tmp_path)[0]["message"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_workers_of_the_data_loader_outlive_what_is_sent_to_all_processes(tmp_path):
    def send_to_all():
        for process in psutil.Process().children(recursive=True):
            for number in HANDLED:
                process.send_signal(number)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    _, guard, trainer = stopped_run(
        tmp_path, "on_step_begin", 2, send_to_all, dataloader_num_workers=1, dataloader_prefetch_factor=1
    )
    assert (guard.preempted, trainer.state.global_step) == ("SIGTERM", 3)


def test_signals_that_cannot_be_seen_are_told(tmp_path):
    thread = threading.Thread(target=stopped_run, args=(tmp_path, "", 0, None))
    thread.start()
    thread.join()
    assert "Signals are not seen" in read_events(tmp_path)[0]["message"]


# --- out of time


def test_a_process_that_is_not_through_in_time_ends_with_what_is_there(tmp_path):
    child = os.fork()
    if child == 0:
        try:
            hang = At("on_step_end", 3, lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(60)))
            ends = lambda code, sentence: (tmp_path / "end.json").write_text(json.dumps([code, sentence]))  # noqa: E731
            guard = PreemptionGuard(grace_seconds=0.3, at_expiry=ends)
            make_trainer(tmp_path, [hang, CheckpointKeeper(), guard], save_steps=2, max_steps=6).train()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 75
    code, sentence = json.loads((tmp_path / "end.json").read_text())
    assert code == 75
    assert "not done within 0.3 s; the newest good checkpoint is checkpoint-2 (" in sentence
    assert read_events(tmp_path)[-1]["kind"] == "alarm"


def test_without_any_checkpoint_that_end_is_a_failure(tmp_path):
    from hf_recipes.checkpoints.preemption.stopped import unsaved_end

    assert unsaved_end(tmp_path, "killed") == (1, "killed, and there is no checkpoint to go on from")
    (tmp_path / "checkpoint-4").mkdir()
    assert unsaved_end(tmp_path, "killed")[0] == 1  # a half-written one is none


def test_a_save_that_is_not_good_is_no_preemption(full_run):
    from hf_recipes.checkpoints.preemption.stopped import saved_end
    from hf_recipes.core.errors import CheckFailed

    assert "saved in checkpoint-2 (verified); go on" in saved_end(full_run, 2, "SIGTERM", verifies=True)
    mark = json.loads((full_run / "checkpoint-2" / "verified.json").read_text())
    (full_run / "checkpoint-2" / "verified.json").write_text(json.dumps({**mark, "ok": False}))
    with pytest.raises(CheckFailed, match="checkpoint-2 did not verify; the newest good checkpoint is checkpoint-1"):
        saved_end(full_run, 2, "SIGTERM", verifies=True)
    shutil.rmtree(full_run / "checkpoint-2")
    with pytest.raises(CheckFailed, match="checkpoint-2 was not written whole"):
        saved_end(full_run, 2, "SIGTERM", verifies=True)
