"""Back to the last good checkpoint while the run goes on."""

from __future__ import annotations

import copy
import json
import math
import pickle
import shutil

import pytest
import torch
from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments, tiny_rows
from torch.optim import lr_scheduler
from transformers import TrainerCallback, get_cosine_with_min_lr_schedule_with_warmup
from watch_helpers import NAN_LOSS, PoisonModel, logged, make_trainer, rows, weights

from hf_recipes.callbacks.non_finite import NonFiniteGuard
from hf_recipes.callbacks.restore import lower_learning_rate, restore_training_state
from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.core.errors import UserError
from hf_recipes.core.events import read_events
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.training.trainer import SupervisedTrainer

SAVES = {"save_strategy": "steps", "save_steps": 2}


def last_good(directory):
    return last_good_checkpoint(directory).path


def alarms(path):
    return [event for event in read_events(path) if event["kind"] == "alarm"]


def moments(optimizer_state):
    return [tensor for state in optimizer_state.values() for tensor in state.values()]


class AfterStep(TrainerCallback):
    """What model and optimizer were like after each step."""

    def __init__(self):
        self.weights, self.moments = {}, {}

    def on_step_end(self, args, state, control, **kwargs):
        self.weights[state.global_step] = weights(kwargs["model"])
        self.moments[state.global_step] = copy.deepcopy(moments(kwargs["optimizer"].state))


def restored_run(tmp_path, bad_rows=(4,), guard=None, **arguments):
    """Six steps, saved at 2, 4 and 6; row 4, by default, makes step 5 bad."""
    guard, after = guard or NonFiniteGuard("restore", last_good=last_good), AfterStep()
    data = rows(12, dict.fromkeys(bad_rows, NAN_LOSS))
    trainer = make_trainer(tmp_path, [guard, after], data, **{**SAVES, "max_steps": 6, **arguments})
    trainer.train()
    return trainer, guard, after


def test_weights_and_optimizer_are_those_of_the_checkpoint_bit_for_bit_and_training_goes_on_after_the_batch(tmp_path):
    trainer, guard, after = restored_run(tmp_path, bad_rows=(5,), save_steps=4)
    checkpoint = tmp_path / "checkpoint-4"
    saved = torch.cat([tensor.flatten() for tensor in load_file(checkpoint / "model.safetensors").values()])
    assert torch.equal(after.weights[6].sort().values, saved.sort().values)  # tensors are stored by name
    assert torch.equal(after.weights[6], after.weights[4])
    assert not torch.equal(after.weights[5], after.weights[4])
    saved_state = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    for put_back, stored, of_step_4 in zip(after.moments[6], moments(saved_state), after.moments[4], strict=True):
        assert torch.equal(put_back, stored) and torch.equal(put_back, of_step_4)
    assert guard.tripped is None
    (alarm,) = alarms(tmp_path)
    assert (alarm["decision"], alarm["restored_from"], alarm["lost_steps"]) == ("restore", "checkpoint-4", 1)
    assert "put back to checkpoint-4 (1 step of training is lost)" in alarm["message"]
    assert "multiplied by 0.5" in alarm["message"] and "1 of 3 times" in alarm["message"]
    assert trainer.state.global_step == 6


def test_the_steps_after_it_are_those_of_an_optimizer_that_started_from_the_checkpoint(tmp_path):
    trainer, _, after = restored_run(tmp_path, max_steps=8)  # step 5 of row 4 is bad; back to step 4
    model = PoisonModel()
    model.load_state_dict(load_file(tmp_path / "checkpoint-4" / "model.safetensors"))
    decayed = [model.embedding.weight, model.head.weight]  # the Trainer's two groups
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": [model.head.bias]}])
    optimizer.load_state_dict(torch.load(tmp_path / "checkpoint-4" / "optimizer.pt", weights_only=True))
    for step, row in zip((6, 7, 8), rows(12)[5:8], strict=True):
        for group in optimizer.param_groups:  # linear from 1e-2 to 0 in 8 steps, half of it
            group["lr"] = 1e-2 * (8 - (step - 1)) / 8 * 0.5
        optimizer.zero_grad()
        model(**{key: value[None] for key, value in row.items()})["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.testing.assert_close(after.weights[step], weights(model), rtol=0, atol=1e-7)
    assert trainer.state.global_step == 8


@pytest.mark.parametrize(
    "schedule",
    [
        "linear",
        *(
            pytest.param(name, marks=pytest.mark.trials)
            for name in ("cosine", "cosine_with_min_lr", "constant", "warmup_stable_decay")
        ),
    ],
)
def test_the_learning_rate_halves_and_stays_halved_through_a_resume(schedule, tmp_path):
    kwargs = {
        "cosine_with_min_lr": {"min_lr_rate": 0.1},
        "warmup_stable_decay": {"num_decay_steps": 3},
    }
    arguments = {
        "lr_scheduler_type": schedule,
        "lr_scheduler_kwargs": kwargs.get(schedule),
        "max_steps": 10,
        "warmup_steps": 2,
    }
    plain = make_trainer(tmp_path / "plain", [], **arguments)
    plain.train()
    expected = logged(plain, "learning_rate")
    whole, _, _ = restored_run(tmp_path / "run", **arguments)  # step 5 is bad: its rate, too, is the lowered one
    halved = expected[:4] + [rate / 2 for rate in expected[4:]]
    assert logged(whole, "learning_rate") == pytest.approx(halved)
    resumed = make_trainer(tmp_path / "run", [NonFiniteGuard("restore", last_good=last_good)], **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-6"))
    assert logged(resumed, "learning_rate") == pytest.approx(halved)
    guard = next(each for each in resumed.callback_handler.callbacks if isinstance(each, NonFiniteGuard))
    assert guard.detector.restores == 1


def test_before_the_first_checkpoint_it_skips_with_a_lower_rate(tmp_path):
    trainer, guard, after = restored_run(tmp_path, bad_rows=(1,))
    assert torch.equal(after.weights[2], after.weights[1])
    (alarm,) = alarms(tmp_path)
    assert (alarm["decision"], alarm["restored_from"]) == ("skip", None)
    assert "There is no good checkpoint yet: the update is skipped" in alarm["message"]
    assert alarm["learning_rate_now"] == pytest.approx(1e-2 * 5 / 6 / 2)  # linear, after one step of six
    assert guard.tripped is None and trainer.state.global_step == 6


def test_a_checkpoint_of_a_later_step_belongs_to_another_run_and_is_left_alone(tmp_path):
    restored_run(tmp_path / "other", bad_rows=())
    shutil.copytree(tmp_path / "other" / "checkpoint-6", tmp_path / "run" / "checkpoint-6")
    restored_run(tmp_path / "run", bad_rows=(2,), save_strategy="no")
    (alarm,) = alarms(tmp_path / "run")
    assert (alarm["decision"], alarm["restored_from"]) == ("skip", None)


def test_after_so_many_restores_it_stops(tmp_path):
    guard = NonFiniteGuard("restore", last_good=last_good, max_restores=2, lr_factor=0.1)
    trainer, guard, _ = restored_run(tmp_path, bad_rows=(2, 4, 6), guard=guard, max_steps=10)
    assert [alarm["decision"] for alarm in alarms(tmp_path)] == ["restore", "restore", "stop"]
    assert trainer.state.global_step == 7
    assert "Training stops after 2 restores, before the update" in guard.tripped
    assert guard.tripped.startswith("Step 7: ")
    assert trainer.optimizer.param_groups[0]["initial_lr"] == pytest.approx(1e-4)


@pytest.mark.parametrize(("policy", "decision"), [("skip", "stop"), ("restore", "restore")])
def test_weights_that_are_not_finite_themselves_cannot_be_skipped_but_put_back(policy, decision, tmp_path):
    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            if state.global_step == 3:
                with torch.no_grad():
                    model.head.bias[2] = math.inf
                    model.embedding.weight[:] = math.nan

    guard = NonFiniteGuard(policy, last_good=last_good)
    trainer = make_trainer(tmp_path, [Break(), guard], **SAVES, max_steps=5)
    trainer.train()
    (alarm,) = alarms(tmp_path)
    assert alarm["step"] == 4
    assert alarm["decision"] == decision
    assert alarm["weights_not_finite"] == ["embedding.weight", "head.bias"]
    assert "The weights themselves are not finite (2 tensors: embedding.weight, head.bias)." in alarm["message"]
    assert trainer.state.global_step == (4 if policy == "skip" else 5)
    assert bool(guard.tripped) == (policy == "skip")
    assert weights(trainer.model).isfinite().all() == (policy == "restore")


def test_frozen_weights_that_no_checkpoint_holds_stop_the_run(tmp_path, tokenizer):
    model = lora(tokenizer)

    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                model.base_model.model.model.norm.weight.data[:] = math.nan

    guard = NonFiniteGuard("restore", last_good=last_good)
    trainer = lora_trainer(model, tokenizer, tmp_path, [Break(), guard], max_steps=4)
    trainer.train()
    assert trainer.state.global_step == 3
    (alarm,) = alarms(tmp_path)
    assert "after going back to checkpoint-2, 1 tensor: base_model.model.model.norm.weight are not finite" in str(alarm)


def lora(tokenizer, **more):
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **more)
    return get_peft_model(make_tiny_llama(len(tokenizer), tied=False), config)


def lora_trainer(model, tokenizer, directory, callbacks, **arguments):
    return SupervisedTrainer(
        model=model,
        args=tiny_arguments(directory, per_device_train_batch_size=2, **{**SAVES, **arguments}),
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=tiny_rows(440),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


@pytest.mark.parametrize(
    "more", [{}, {"modules_to_save": ["lm_head"]}, {"use_dora": True}, {"init_lora_weights": "pissa"}]
)
def test_an_adapter_is_put_back_bit_for_bit_with_the_modules_saved_beside_it(more, tmp_path, tokenizer):
    model = lora(tokenizer, **more)
    trainer = lora_trainer(model, tokenizer, tmp_path, [], max_steps=4)
    trainer.train()
    checkpoint = tmp_path / "checkpoint-2"
    before = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    stored = load_file(checkpoint / "adapter_model.safetensors")
    assert any(not torch.equal(value, stored[name]) for name, value in get_peft_model_state_dict(model).items())
    restore_training_state(model, trainer.optimizer, checkpoint)
    now = get_peft_model_state_dict(model)
    assert now.keys() == stored.keys()
    assert all(torch.equal(value, stored[name]) for name, value in now.items())
    after = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(after[name] is before[name] for name in before)  # in place: the optimizer holds these
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    for put_back, saved in zip(moments(trainer.optimizer.state), moments(state), strict=True):
        assert torch.equal(put_back, saved)
    assert [group["lr"] for group in trainer.optimizer.param_groups] == rates


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["50KB", "1GB"])
def test_a_whole_model_is_put_back_from_one_file_or_many_tied_or_not(shard, tied, tmp_path):
    model = make_tiny_llama(tied=tied)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.tensor([[3, 4, 5]]), labels=torch.tensor([[3, 4, 5]])).loss.backward()
    optimizer.step()
    model.save_pretrained(tmp_path, max_shard_size=shard)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "50KB")
    saved, saved_moments = weights(model).clone(), copy.deepcopy(moments(optimizer.state))
    for _ in range(2):
        optimizer.step()
    assert not torch.equal(weights(model), saved)
    restore_training_state(model, optimizer, tmp_path)
    assert torch.equal(weights(model), saved)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert all(map(torch.equal, moments(optimizer.state), saved_moments))


def saved_poison_model(path, model):
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = make_trainer(path, [], model=model, **SAVES, max_steps=2)
    trainer.train()
    return trainer.optimizer or optimizer, path / "checkpoint-2"


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_changed(tmp_path):
    model = PoisonModel()
    optimizer, checkpoint = saved_poison_model(tmp_path, model)
    other = torch.nn.Linear(2, 2)
    before = weights(other)
    with pytest.raises(UserError, match="which the model does not have so"):
        restore_training_state(other, optimizer, checkpoint)
    assert torch.equal(weights(other), before)
    larger = PoisonModel()
    larger.added = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"does not hold 'added.weight', which is trained"):
        restore_training_state(larger, optimizer, checkpoint)


def test_nothing_in_a_checkpoint_is_executed(tmp_path):
    model = PoisonModel()
    optimizer, checkpoint = saved_poison_model(tmp_path, model)

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save({"state": Evil()}, checkpoint / "optimizer.pt")
    with pytest.raises(UserError, match="cannot be put back"):
        restore_training_state(model, optimizer, checkpoint)
    (checkpoint / "optimizer.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match="cannot be put back"):
        restore_training_state(model, optimizer, checkpoint)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "optimizer.pt"])
@pytest.mark.parametrize("kept_bytes", [0, 100])
def test_files_cut_short_are_refused_in_a_sentence(file, kept_bytes, tmp_path, tokenizer):
    model = lora(tokenizer)
    trainer = lora_trainer(model, tokenizer, tmp_path, [], max_steps=2)
    trainer.train()
    damaged = tmp_path / "checkpoint-2" / file
    damaged.write_bytes(damaged.read_bytes()[:kept_bytes])
    with pytest.raises(UserError, match="checkpoint-2' cannot be put back"):
        restore_training_state(model, trainer.optimizer, tmp_path / "checkpoint-2")


def test_a_checkpoint_that_cannot_be_put_back_stops_the_run_in_a_sentence(tmp_path):
    def damaged(directory):
        (directory / "checkpoint-2" / "model.safetensors").write_bytes(b"short")
        return directory / "checkpoint-2"

    trainer, guard, _ = restored_run(tmp_path, bad_rows=(3,), guard=NonFiniteGuard("restore", last_good=damaged))
    assert trainer.state.global_step == 4
    assert "Training stops, for it could not be put back: " in guard.tripped
    assert "checkpoint-2" in guard.tripped and "too few for a safetensors header" in guard.tripped


def test_a_search_that_fails_stops_the_run_in_a_sentence(tmp_path):
    def fails(directory):
        raise ZeroDivisionError("mine")

    _, guard, _ = restored_run(tmp_path, guard=NonFiniteGuard("restore", last_good=fails))
    assert "the last good checkpoint could not be found (ZeroDivisionError: mine)" in guard.tripped


def test_what_cannot_be_put_back_is_refused_at_the_start(tmp_path):
    with pytest.raises(UserError, match=r"give it last_good=.*watch.non_finite: stop.*--resume_from_checkpoint last"):
        restored_run(tmp_path, guard=NonFiniteGuard("restore"))
    guard = NonFiniteGuard("restore", last_good=last_good)
    trainer = make_trainer(tmp_path, [guard])
    engine = DeepSpeedOptimizerWrapper.__new__(DeepSpeedOptimizerWrapper)
    with pytest.raises(UserError, match=r"DeepSpeed holds .*watch.non_finite: stop.*--resume_from_checkpoint last"):
        guard.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model, optimizer=engine)
    assert trainer.args.max_grad_norm == 1.0 and not trainer.model._forward_hooks


def test_a_copy_that_the_trainer_builds_at_a_resume_knows_the_checkpoints_too(tmp_path):
    guard = NonFiniteGuard("restore", last_good=last_good, lr_factor=0.25)
    restored_run(tmp_path, bad_rows=(), max_steps=4)
    arguments = {**SAVES, "max_steps": 8, "restore_callback_states_from_checkpoint": True}
    resumed = make_trainer(tmp_path, [guard], rows(12, {5: NAN_LOSS}), **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    used = next(each for each in resumed.callback_handler.callbacks if isinstance(each, NonFiniteGuard))
    assert used is not guard
    assert json.dumps(used.state())
    assert [alarm["restored_from"] for alarm in alarms(tmp_path)] == ["checkpoint-4"]


SCHEDULES = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine to a tenth": lambda optimizer: get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, 3, 20, min_lr_rate=0.1
    ),
    "cosine, recursive": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 20),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20),
    "one after the other": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[5],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("step", [1, 4, 9])
def test_every_later_rate_of_every_group_is_lowered(name, as_tensor, step):
    def run(lowered_at):
        first, second = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
        rates = [torch.tensor(0.1) if as_tensor else 0.1, torch.tensor(0.02) if as_tensor else 0.02]
        groups = [{"params": [each], "lr": rate} for each, rate in zip((first, second), rates, strict=True)]
        optimizer = torch.optim.AdamW(groups)
        schedule, seen = SCHEDULES[name](optimizer), []
        kept = [group["lr"] for group in optimizer.param_groups]
        for now in range(1, 15):
            if now == lowered_at:
                assert lower_learning_rate(optimizer, schedule, 0.25) == float(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
            seen.append([float(group["lr"]) for group in optimizer.param_groups])
            assert [float(rate) for rate in schedule.get_last_lr()] == pytest.approx(seen[-1])
        assert not as_tensor or all(
            group["lr"] is rate for group, rate in zip(optimizer.param_groups, kept, strict=True)
        )
        return torch.tensor(seen)

    plain, lowered = run(None), run(step)
    torch.testing.assert_close(lowered[: step - 1], plain[: step - 1])
    torch.testing.assert_close(lowered[step - 1 :], plain[step - 1 :] * 0.25)


def test_a_rate_lowered_on_a_plateau_stays_lowered():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    schedule.step(1.0)
    lower_learning_rate(optimizer, schedule, 0.5)
    schedule.step(0.5)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    schedule.step(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
