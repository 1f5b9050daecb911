"""No NaN reaches the weights, whatever the Trainer's log says."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import TrainerCallback
from watch_helpers import (
    NAN_GRADIENT_ONLY,
    NAN_LOSS,
    NAN_LOSS_ONLY,
    LossScaled,
    PoisonModel,
    logged,
    make_trainer,
    optimizer_steps,
    rows,
    weights,
)

from hf_recipes.callbacks.bad_batches import load_bad_batch
from hf_recipes.callbacks.non_finite import NonFiniteGuard
from hf_recipes.core.errors import UserError
from hf_recipes.core.events import read_events

MARKERS = {"loss and gradient": NAN_LOSS, "loss": NAN_LOSS_ONLY, "gradient": NAN_GRADIENT_ONLY}


class WeightsByStep(TrainerCallback):
    def __init__(self):
        self.after = {}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.after[state.global_step] = weights(model)


def alarms(path):
    return [event for event in read_events(path) if event["kind"] == "alarm"]


def test_t5_without_the_guard_the_weights_become_nan_and_the_log_looks_fine(tmp_path):
    trainer = make_trainer(tmp_path, [], rows(8, {1: NAN_LOSS}))
    result = trainer.train()
    assert weights(trainer.model).isnan().any()
    assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))
    assert math.isfinite(result.training_loss)


@pytest.mark.parametrize("logging_steps", [1, 500])
@pytest.mark.parametrize("fault", MARKERS)
def test_t5_stops_before_the_update_whatever_logging_steps_is(fault, logging_steps, tmp_path):
    guard, weights_by_step = NonFiniteGuard(), WeightsByStep()
    # 3 micro-batches a step: row 4 is the second micro-batch of step 2.
    trainer = make_trainer(
        tmp_path,
        [guard, weights_by_step],
        rows(12, {4: MARKERS[fault]}),
        gradient_accumulation_steps=3,
        logging_steps=logging_steps,
    )
    trainer.train()
    assert trainer.state.global_step == 2
    assert weights(trainer.model).isfinite().all()
    torch.testing.assert_close(weights(trainer.model), weights_by_step.after[1], rtol=0, atol=0)
    assert optimizer_steps(trainer) == [1.0] * 3
    (alarm,) = alarms(tmp_path)
    expected = "gradient" if fault == "gradient" else "loss"
    assert (alarm["detector"], alarm["step"], alarm["what"]) == ("non_finite", 2, expected)
    assert (alarm["micro_batch"], alarm["micro_batches"], alarm["bad_rank"]) == (2, 3, 0)
    assert (alarm["decision"], alarm["update_dropped"]) == ("stop", True)
    assert guard.tripped == alarm["message"]
    assert guard.tripped.startswith(f"Step 2: the {expected} of micro-batch 2 of 3 on rank 0 is not finite")
    assert "the weights are those of step 1" in guard.tripped
    assert "halve learning_rate (0.01 → 0.005)" in guard.tripped


@pytest.mark.parametrize("fault", MARKERS)
def test_the_last_micro_batch_is_named_too(fault, tmp_path):
    trainer = make_trainer(tmp_path, [NonFiniteGuard()], rows(6, {2: MARKERS[fault]}), gradient_accumulation_steps=3)
    trainer.train()
    (alarm,) = alarms(tmp_path)
    assert (alarm["step"], alarm["micro_batch"], alarm["bad_rank"]) == (1, 3, 0)


def test_skip_leaves_weights_and_optimizer_state_and_goes_on(tmp_path):
    guard, weights_by_step = NonFiniteGuard("skip"), WeightsByStep()
    trainer = make_trainer(tmp_path, [guard, weights_by_step], rows(4, {1: NAN_LOSS}))
    trainer.train()
    after = weights_by_step.after
    torch.testing.assert_close(after[2], after[1], rtol=0, atol=0)
    assert not torch.equal(after[3], after[2])
    assert trainer.state.global_step == 4
    assert guard.tripped is None
    assert optimizer_steps(trainer) == [3.0] * 3  # of four
    assert all(state["exp_avg"].isfinite().all() for state in trainer.optimizer.state.values())
    (alarm,) = alarms(tmp_path)
    assert alarm["decision"] == "skip"
    assert "1 in a row, 10 stop the run" in alarm["message"]
    (note,) = [event for event in read_events(tmp_path) if event["kind"] == "note"]
    assert note["skipped"] == 1


def test_skip_stops_after_the_limit_in_a_row(tmp_path):
    guard = NonFiniteGuard("skip", max_consecutive_skips=2)
    trainer = make_trainer(tmp_path, [guard], rows(8, {0: NAN_LOSS, 2: NAN_LOSS, 3: NAN_LOSS}), max_steps=8)
    trainer.train()
    assert trainer.state.global_step == 4
    assert "stops after 2 such steps in a row" in guard.tripped


def test_the_counts_survive_resume(tmp_path):
    data = rows(8, {1: NAN_LOSS, 2: NAN_LOSS})
    first = make_trainer(tmp_path, [NonFiniteGuard("skip")], data, max_steps=2, save_strategy="steps", save_steps=2)
    first.train()
    guard = NonFiniteGuard("skip", max_consecutive_skips=2)
    resumed = make_trainer(tmp_path, [guard], data)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 3  # one before the checkpoint, one after it
    assert guard.tripped


def test_overflow_under_a_loss_scaler_is_left_to_it(tmp_path):
    """A scaler with a huge scale overflows fp16-like gradients at first; it must be let settle, not stopped."""

    guard = NonFiniteGuard(max_consecutive_skips=3)
    trainer = make_trainer(tmp_path, [LossScaled(), guard], rows(4, {1: NAN_GRADIENT_ONLY}))
    trainer.train()
    assert trainer.state.global_step == 4
    assert guard.tripped is None
    assert guard.detector.total == 1
    assert not alarms(tmp_path)
    assert weights(trainer.model).isfinite().all()


def test_a_finite_run_raises_no_alarm_and_costs_no_update(tmp_path):
    trainer = make_trainer(tmp_path, [NonFiniteGuard()])
    trainer.train()
    assert optimizer_steps(trainer) == [4.0] * 3
    assert read_events(tmp_path) == []


def test_an_evaluation_with_nan_is_no_alarm(tmp_path):
    trainer = make_trainer(tmp_path, [NonFiniteGuard()], eval_strategy="steps", eval_steps=1)
    trainer.eval_dataset = rows(8, {0: NAN_LOSS_ONLY})
    trainer.train()
    assert trainer.state.global_step == 4
    assert alarms(tmp_path) == []


def test_a_compiled_model_is_guarded(tmp_path):
    torch._dynamo.reset()
    model = PoisonModel()
    model.compile(backend="eager")
    guard = NonFiniteGuard()
    trainer = make_trainer(tmp_path, [guard], rows(4, {1: NAN_LOSS_ONLY}), model=model)
    trainer.train()
    assert trainer.state.global_step == 2
    assert "the loss of micro-batch 1" in guard.tripped


def test_t5_a_trl_trainer_is_guarded(tmp_path, tiny_model, tokenizer):
    """TRL computes its loss in chunks without logits; the guard must see that one too."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    bad_token = 300
    tiny_model.lm_head.weight = torch.nn.Parameter(tiny_model.lm_head.weight.detach().clone())  # untied: only the input
    # Frozen: weights that are trained and not finite are refused before the first step.
    tiny_model.get_input_embeddings().weight.requires_grad_(False)[bad_token] = float("inf")
    healthy = {"input_ids": list(range(10, 30)), "labels": list(range(10, 30))}
    poisoned = {**healthy, "input_ids": [*range(10, 29), bad_token]}
    guard = NonFiniteGuard()
    trainer = SFTTrainer(
        model=tiny_model,
        args=SFTConfig(
            output_dir=str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            dataset_kwargs={"skip_prepare_dataset": True},
            train_sampling_strategy="sequential",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([healthy, healthy, healthy, poisoned, healthy, healthy]),
        processing_class=tokenizer,
        callbacks=[guard],
    )
    trainer.train()
    assert trainer.state.global_step == 2
    assert "the loss of micro-batch 2 of 2 on rank 0" in guard.tripped
    assert "The weights themselves are not finite (1 tensor: model.embed_tokens.weight)." in guard.tripped
    finite = torch.ones(len(tokenizer), dtype=torch.bool)
    finite[bad_token] = False
    assert tiny_model.get_input_embeddings().weight[finite].isfinite().all()
    assert all(each.isfinite().all() for each in tiny_model.parameters() if each.requires_grad)
    batch = load_bad_batch(tmp_path / "bad_batches" / "step-2-rank0-micro2.json")
    assert batch["input_ids"][0, :20].tolist() == poisoned["input_ids"]
    assert tiny_model(**batch).loss.isnan()


def test_another_policy_is_refused():
    with pytest.raises(UserError, match="policy must be 'stop', 'skip' or 'restore'"):
        NonFiniteGuard("halt")
    with pytest.raises(UserError, match="lr_factor must be above 0 and at most 1"):
        NonFiniteGuard(lr_factor=0)


def test_trained_weights_that_are_not_finite_are_refused_before_the_first_step(tmp_path):
    model = PoisonModel()
    model.head.bias.data[3] = math.inf
    trainer = make_trainer(tmp_path, [NonFiniteGuard()], model=model)
    with pytest.raises(
        UserError, match=r"Before step 1, trainable weights are not finite already .1 tensor: head.bias"
    ):
        trainer.train()
    assert trainer.args.max_grad_norm == 1.0
    model.head.bias.data[3] = 0.0
    trainer.train()
    assert trainer.state.global_step == 4
