"""Domain and general rows are evaluated apart, and together as before."""

from __future__ import annotations

import pytest
from tiny_runs import tiny_arguments, tiny_rows
from transformers import TrainerCallback

from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.core.events import read_events
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.training.eval_parts import evaluate_in_parts
from hf_recipes.training.trainer import SupervisedTrainer


def train(directory, model, tokenizer, eval_dataset, **arguments):
    seen = []

    class Seen(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            seen.append(metrics)

    trainer = SupervisedTrainer(
        model=model,
        args=tiny_arguments(
            directory,
            **{"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 1, **arguments},
        ),
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=tiny_rows(100),
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        callbacks=[EventLogCallback(), Seen()],
    )
    evaluate_in_parts(trainer)
    trainer.train()
    return trainer, seen


def test_the_common_loss_is_that_of_all_rows(tmp_path, tiny_model, tokenizer):
    start = {name: value.clone() for name, value in tiny_model.state_dict().items()}
    rows = tiny_rows(100, 9)
    whole, _ = train(tmp_path / "whole", tiny_model, tokenizer, rows)
    expected = [log["eval_loss"] for log in whole.state.log_history if "eval_loss" in log]
    tiny_model.load_state_dict(start)
    parts = {"domain": rows.select(range(6)), "general": rows.select(range(6, 9))}
    split, seen = train(
        tmp_path / "parts",
        tiny_model,
        tokenizer,
        parts,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
    )
    logged = [log for log in split.state.log_history if "eval_loss" in log]
    assert [log["eval_loss"] for log in logged] == pytest.approx(expected, rel=1e-5)
    assert [metrics["eval_loss"] for metrics in seen if "eval_loss" in metrics] == pytest.approx(expected, rel=1e-5)
    assert split.state.best_metric == pytest.approx(min(expected), rel=1e-5)
    events = [event for event in read_events(tmp_path / "parts") if event["kind"] == "eval"]
    assert [sorted(key for key in event if key.endswith("_loss")) for event in events[:2]] == [
        ["eval_domain_loss"],
        ["eval_general_loss", "eval_loss"],
    ]


def test_without_parts_nothing_is_added(tmp_path, tiny_model, tokenizer):
    trainer, seen = train(tmp_path, tiny_model, tokenizer, tiny_rows(100, 3))
    assert len(seen) == 2
    assert not any(type(each).__name__ == "EvalParts" for each in trainer.callback_handler.callbacks)
