"""Samples are written down at every evaluation and change nothing of the training."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_runs import logged, tiny_arguments, tiny_rows

from hf_recipes.callbacks.generations import GenerationWatch, Prompt
from hf_recipes.core.events import read_events
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.training.trainer import SupervisedTrainer


def train(directory, model, tokenizer, callbacks, **arguments):
    trainer = SupervisedTrainer(
        model=model,
        args=tiny_arguments(directory, **{"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, **arguments}),
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=tiny_rows(100),
        eval_dataset=tiny_rows(100, 2),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


def events(directory, kind):
    return [event for event in read_events(directory) if event["kind"] == kind]


def test_answers_are_written_and_the_training_is_the_same(tmp_path, tiny_model, tokenizer):
    start = {name: value.clone() for name, value in tiny_model.state_dict().items()}
    tiny_model.config.attention_dropout = 0.1  # so that a disturbed random state would show
    plain = logged(train(tmp_path / "plain", tiny_model, tokenizer, []), "loss", "grad_norm")
    tiny_model.load_state_dict(start)
    messages = [{"role": "user", "content": "Two teas"}]
    watch = GenerationWatch(["Hello", Prompt(messages, '{"a": 1}'), Prompt([5, 6, 7])], max_new_tokens=5)
    watched = logged(train(tmp_path / "watched", tiny_model, tokenizer, [watch]), "loss", "grad_norm")
    assert watched == plain
    told = events(tmp_path / "watched", "generate")
    assert [event["step"] for event in told] == [2, 4]
    assert told[0]["samples"][0]["prompt"] == "Hello"
    assert "Two teas" in told[0]["samples"][1]["prompt"]
    assert told[0]["samples"][1]["ok"] is False  # a random model writes no JSON
    assert told[0]["format_share"] == 0.0
    saved = json.loads((tmp_path / "watched" / "generations" / "step-4.json").read_text())
    assert saved["samples"] == told[1]["samples"]
    assert watch.metrics() == {"format_share": 0.0}


def test_a_form_that_gets_lost_is_told_once(tmp_path, tiny_model, tokenizer):
    shares = iter([True, True, True, False, False, False, False])
    watch = GenerationWatch(["Hello"], max_new_tokens=1, judge=lambda answer, reference: (next(shares), "off"))
    train(tmp_path, tiny_model, tokenizer, [watch], max_steps=7, eval_steps=1)
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["detector"], alarm["step"], alarm["best_format_share"]) == ("generations", 5, 1.0)
    assert "0% of the sample answers keep their form" in alarm["message"]


def test_a_model_that_cannot_generate_does_not_end_the_run(tmp_path, tiny_model, tokenizer, monkeypatch, caplog):
    def fails(*args, **kwargs):
        raise RuntimeError("no cache")

    monkeypatch.setattr(tiny_model, "generate", fails)
    trainer = train(tmp_path, tiny_model, tokenizer, [GenerationWatch(["Hello"])])
    assert trainer.state.global_step == 4
    assert events(tmp_path, "generate") == []
    assert [record.getMessage() for record in caplog.records if "No more samples" in record.getMessage()] == [
        "No more samples are generated: RuntimeError: no cache"
    ]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_sampling_leaves_checkpointing_and_caches_as_they_were(checkpointing, tmp_path, tiny_model, tokenizer):
    watch = GenerationWatch(["Hello"], max_new_tokens=3)
    train(tmp_path, tiny_model, tokenizer, [watch], gradient_checkpointing=checkpointing)
    assert tiny_model.is_gradient_checkpointing is checkpointing
    assert len(events(tmp_path, "generate")) == 2
    assert all(each.grad is None or torch.isfinite(each.grad).all() for each in tiny_model.parameters())
