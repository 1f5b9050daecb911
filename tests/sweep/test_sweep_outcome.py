"""What a trial's run directory says of it."""

from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.sweep.outcome import read_outcome

FIGURES = [
    {"name": "general_nats", "label": "loss on general text", "aliases": ["general_loss"], "values": {"tuned": 0.72}},
    {"name": "forgetting", "label": "forgetting", "aliases": [], "values": {"base": None, "tuned": -0.08}},
    {"name": "ms_per_token", "label": "time per token after it (ms)", "aliases": [], "values": {"tuned": 19.5}},
]


def make_run(path, code=0, sentence="finished", evaluation=None, recipe=None):
    def event(kind, step, **values):
        return {"attempt": 1, "rank": 0, "time": 100.0 + step, "kind": kind, "step": step, **values}

    events = [
        event("begin", 0, max_steps=10),
        event("eval", 0, eval_loss=2.0, eval_general_loss=1.0),
        event("log", 5, loss=1.5, tokens_per_second=90.0, memory_gb=1.048576),
        event("eval", 5, eval_loss=1.2, eval_general_loss=1.1),
        event("log", 10, loss=1.0, tokens_per_second=110.0, memory_gb=0.5),
        event("eval", 10, eval_loss=1.4, eval_general_loss=1.3),
    ]
    path.mkdir()
    (path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    (path / "run.json").write_text(json.dumps({"recipe": recipe or {}, "trainable_parameters": 42}))
    (path / "status.json").write_text(json.dumps({"code": code, "sentence": sentence, "last_step": 10}))
    if evaluation is not None:
        (path / "evaluation.json").write_text(json.dumps({"figures": evaluation}))
    return path


def test_the_figures_of_a_run_that_ended_well(tmp_path):
    found = read_outcome(make_run(tmp_path / "run"), "eval_loss")
    assert (found.state, found.steps, found.trained, found.seconds) == ("ok", 10, 42, 10.0)
    assert (found.target, found.best_loss, found.last_loss) == (1.4, 1.2, 1.4)  # the last model is kept
    assert found.memory_mib == pytest.approx(1000)  # 1.048576e9 bytes / 2^20
    assert found.tokens_per_second == 100.0
    assert found.forgetting == pytest.approx(0.3)  # from the evaluation before the first step
    assert found.curve == [(0.5, 1.2), (1.0, 1.4)]


def test_the_best_model_counts_where_it_is_the_one_that_is_kept(tmp_path):
    run = make_run(tmp_path / "run", recipe={"load_best_model_at_end": True})
    assert read_outcome(run, "eval_loss").target == 1.2


def test_a_loss_that_no_evaluation_has_is_told_with_the_nearest(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"no 'eval_gneral_loss' \(did you mean 'eval_general_loss'\?\): they have "):
        read_outcome(run, "eval_gneral_loss")
    assert read_outcome(run, "eval_general_loss").target == 1.3


@pytest.mark.parametrize("metric", ["general_loss", "general_nats", "loss on general text"])
def test_a_figure_of_the_evaluation_is_found_by_any_of_its_names(metric, tmp_path):
    found = read_outcome(make_run(tmp_path / "run", evaluation=FIGURES), metric)
    assert (found.target, found.forgetting, found.ms_per_token) == (0.72, -0.08, 19.5)


def test_a_figure_that_there_is_not_is_told_with_those_that_there_are(tmp_path):
    with pytest.raises(UserError, match=r"no 'general_los' .did you mean 'general_loss'"):
        read_outcome(make_run(tmp_path / "run", evaluation=FIGURES), "general_los")


@pytest.mark.parametrize(
    ("code", "sentence", "state", "told"),
    [
        (1, "training was stopped: the loss is nan", "pruned", "by a watcher: the loss is nan"),
        (1, "crashed with ValueError: no", "failed", "crashed with ValueError: no"),
        (1, "the result in 'x' is damaged: y", "failed", "the result in 'x' is damaged: y"),
        (2, "no such model", "failed", "no such model"),
        (75, "stopped at step 5", "stopped", "stopped at step 5"),
        (130, "interrupted", "stopped", "interrupted"),
    ],
)
def test_how_a_run_ended_otherwise(code, sentence, state, told, tmp_path):
    found = read_outcome(make_run(tmp_path / "run", code, sentence), "eval_loss")
    assert (found.state, found.sentence) == (state, told)


def test_a_run_that_the_sweep_stopped_is_pruned_unless_it_was_done(tmp_path):
    stopped = read_outcome(make_run(tmp_path / "a", 75, "stopped"), "eval_loss", pruned="worse than the median")
    assert (stopped.state, stopped.sentence, stopped.target) == ("pruned", "worse than the median", 1.4)
    assert read_outcome(make_run(tmp_path / "b"), "eval_loss", pruned="worse than the median").state == "ok"


def test_a_run_that_is_not_there_waits(tmp_path):
    assert read_outcome(tmp_path / "none", "eval_loss").state == "waiting"
