"""Optuna asked for points and told their values; its study outlives the process."""

from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.sweep.axes import Axis, Span
from hf_recipes.sweep.pruning import study_pruner

optuna = pytest.importorskip("optuna")
from hf_recipes.sweep.optuna_study import Study  # noqa: E402

RATE = Axis("learning_rate", span=Span(1e-5, 1e-1, log=True, whole=False))
RANK = Axis("lora_r", span=Span(2, 8, log=False, whole=True))
TARGETS = Axis("lora_target_modules", (["q_proj"], ["q_proj", "v_proj"]))


def open_study(directory, seed=0, pruner=None):
    return Study(directory, [RATE, RANK, TARGETS], seed, less=True, pruner=pruner)


def test_points_lie_on_their_axes_and_a_study_goes_on(tmp_path):
    study = open_study(tmp_path)
    points = []
    for state in ("ok", "pruned", "failed"):
        trial, point = study.ask()
        assert 1e-5 <= point["learning_rate"] <= 1e-1 and 2 <= point["lora_r"] <= 8
        assert point["lora_target_modules"] in TARGETS.values
        study.tell(trial, 1.0 if state == "ok" else None, state)
        points.append(point)
    _, left = study.ask()  # and the process ends

    again = open_study(tmp_path)
    assert again.told() == 3
    ((number, point),) = again.unfinished()
    assert (number, point) == (3, left)
    again.tell(number, 0.5, "ok")
    assert again.unfinished() == [] and again.told() == 4
    assert again.study.best_trial.number == 3
    _, fresh = again.ask()
    assert fresh not in points  # a sampler with the same seed would begin again


def test_it_finds_where_the_loss_is_low(tmp_path):
    study = open_study(tmp_path)
    tried = []
    for _ in range(40):
        trial, point = study.ask()
        loss = abs(point["lora_r"] - 8) + 5 * (point["lora_target_modules"] == ["q_proj"])
        study.tell(trial, float(loss), "ok")
        tried.append(loss)
    # Drawn evenly, a point costs 3 + 2.5 on average.
    assert sum(tried[20:]) / 20 < 3.5


def test_hyperband_is_told_the_losses_of_a_running_trial(tmp_path):
    study = open_study(tmp_path, pruner="hyperband")
    trial, _ = study.ask()
    pruner = study_pruner("eval_loss", study, trial)
    assert pruner.judge([(0.1, 2.0)]) is None or "Hyperband" in pruner.judge([(0.1, 2.0), (0.2, 1.0)])
    assert study.study.get_trials()[0].intermediate_values[10] == 2.0
    assert study_pruner("eval_loss", study, 0).judge([(0.1, 2.0)]) is None


def test_seeds_are_no_choice(tmp_path):
    with pytest.raises(UserError, match="chooses among points, not seeds"):
        Study(tmp_path, [Axis("seed", (1, 2))], 0, less=True, pruner=None)
