"""The check before anything is loaded, on real runs of a tiny model."""

from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.plan.memory import optimizer
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.report.page import write_report
from hf_recipes.training import plan_check
from hf_recipes.training.run import train

RECIPE = """
model_name_or_path: MODEL
overfit_check: off
datasets: [rows.jsonl]
max_length: 64
max_steps: 2
eval_share: 0
save_strategy: "no"
per_device_train_batch_size: 4
disable_tqdm: true
"""


@pytest.fixture
def recipe(tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"instruction": f"Say {n}", "output": f"It is {n}."} for n in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("MODEL", str(tiny_model_dir)))
    return lambda *keys, run="run": load_recipe("recipe.yaml", ["--output_dir", run, *keys])


def free(monkeypatch, size):
    monkeypatch.setattr(plan_check, "free_bytes", lambda device: size)


def no_weights(monkeypatch):
    def refuse(*arguments, **more):
        raise AssertionError("weights are loaded")

    monkeypatch.setattr("hf_recipes.training.build_run.build_for_method", refuse)


def test_a_run_leaves_what_was_planned_and_measured(recipe, tmp_path, caplog):
    with caplog.at_level("INFO", logger="hf_recipes"):
        train(recipe())
    plan = json.loads((tmp_path / "run/plan.json").read_text())
    peak = plan["memory"]["phases"][plan["memory"]["peak_phase"]]
    assert sum(peak.values()) == pytest.approx(plan["memory"]["device_bytes"])
    assert plan["settings"]["micro_batch"] == 4
    assert plan["measured"]["memory_bytes"] > 0
    assert plan["measured"]["steps"] == 2
    assert "Plan: a step of 4 × " in caplog.text
    page = write_report_of(tmp_path / "run")
    assert "Planned and measured" in page
    assert "On a CPU there is no allocator to ask" in page
    assert "GiB" in page


def write_report_of(path):
    from hf_recipes.core.run_directory import RunDirectory

    return write_report(RunDirectory(path)).read_text(encoding="utf-8")


def test_what_cannot_fit_stops_before_data_and_weights(recipe, monkeypatch):
    no_weights(monkeypatch)
    monkeypatch.setattr("hf_recipes.training.run_data.prepare_data", lambda *_, **__: pytest.fail("data are prepared"))
    free(monkeypatch, 10_000)
    with pytest.raises(
        UserError, match=r"^This run cannot fit: a step of 4 × 8 tokens .* needs .* are free: .*plan_check: off"
    ):
        train(recipe())


def test_rows_that_are_too_long_stop_before_the_weights_and_say_what_helps(recipe, monkeypatch):
    """The shortest rows fit; those there are do not, and a shorter max_length or a smaller micro-batch would."""
    needs = {}

    def watched(*arguments, **more):
        found = real(*arguments, **more)
        needs[arguments[1].tokens] = min(found.device_bytes, needs.get(arguments[1].tokens, float("inf")))
        return found

    real = plan_check.estimate_memory
    monkeypatch.setattr(plan_check, "estimate_memory", watched)
    train(recipe("--activation_checkpointing", "false"))
    shortest, longest = needs[8], max(needs[tokens] for tokens in needs if tokens < 64)
    assert shortest < longest
    no_weights(monkeypatch)
    free(monkeypatch, (shortest + longest) / 2)
    with pytest.raises(UserError, match=r"the longest row has \d+.*per_device_train_batch_size: 1"):
        train(recipe("--activation_checkpointing", "false", run="again"))


def test_off_tries_it_anyway(recipe, monkeypatch, tmp_path):
    free(monkeypatch, 1)
    train(recipe("--plan_check", "off"))
    assert not (tmp_path / "run/plan.json").exists()
    assert "Planned and measured" not in write_report_of(tmp_path / "run")


def test_a_strategy_the_launcher_did_not_follow_is_refused(recipe):
    with pytest.raises(UserError, match="strategy: zero2 needs several devices"):
        train(recipe("--strategy", "zero2"))


def test_an_optimizer_whose_memory_is_not_known_trains_all_the_same(recipe, monkeypatch, tmp_path, caplog):
    free(monkeypatch, 1)
    monkeypatch.delitem(optimizer._KINDS, "sgd")
    train(recipe("--optim", "sgd"))
    assert "Whether this run fits is not known: optim: what 'sgd' keeps in memory is not known" in caplog.text
    assert not (tmp_path / "run/plan.json").exists()


def test_ranks_of_a_cpu_are_not_advised_to_be_more(recipe, monkeypatch):
    no_weights(monkeypatch)
    free(monkeypatch, 10_000)
    with pytest.raises(UserError) as caught:
        train(recipe())
    assert "devices" not in str(caught.value)
    assert "host" not in str(caught.value)
