"""Causes of what is wrong with a run, from its curves, alarms and data; ranked, and relative to its own settings."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.doctor.run.case import AlarmSeen, Case
from hf_recipes.doctor.run.diagnosis import diagnose, diagnose_run, render
from hf_recipes.doctor.run.read_case import case_of_state, number
from hf_recipes.doctor.run.replay import Replay
from hf_recipes.doctor.run.settings import Settings

LORA = Settings(learning_rate=2e-4, max_grad_norm=1.0, full=False, warm_up_steps=3, max_steps=100, lora_r=16)


def noise(step: int) -> float:
    """Between −1 and 1, another value at every step."""
    return math.sin(12.9898 * step) * math.cos(78.233 * step)


def state(losses, *, norms=None, rate=2e-4, evaluations=None, **values):
    history = [
        {
            "step": step,
            "loss": loss,
            "grad_norm": 0.5 + 0.1 * noise(step) if norms is None else norms[step - 1],
            "learning_rate": rate,
        }
        for step, loss in enumerate(losses, 1)
    ]
    history += [{"step": step, "eval_loss": loss} for step, loss in (evaluations or {}).items()]
    return {"log_history": sorted(history, key=lambda entry: entry["step"]), "max_steps": len(losses), **values}


FALLING = [2.5 * math.exp(-step / 40) + 0.5 + 0.05 * noise(step) for step in range(1, 101)]


def causes(losses, settings=LORA, **values):
    case = replace(case_of_state(state(losses, **values), "run"), settings=settings)
    return {cause.name: cause for cause in diagnose(case).causes}


def test_a_healthy_run_says_so():
    found = diagnose(case_of_state(state(FALLING, evaluations={50: 1.4, 100: 0.8}), "run"))
    assert (found.causes, found.healthy) == ((), True)
    assert "Healthy: nothing speaks against this run." in render(found)
    assert "100 of 100 steps, loss 2.919 → 0.6682" in found.summary


def test_not_finite_stands_before_everything_and_advice_is_relative_to_the_run():
    found = causes([*FALLING[:30], math.nan, *FALLING[30:40]])
    assert next(iter(found)) == "not_finite"
    assert "halve learning_rate (0.0002 → 0.0001)" in found["not_finite"].change
    assert "step 31" in found["not_finite"].evidence[0]
    assert "1e-05" not in found["not_finite"].change  # only for full fine-tunes
    full = causes([*FALLING[:30], math.nan], settings=Settings(learning_rate=5e-5, full=True))
    assert "below 1e-05" in full["not_finite"].change


def test_settings_that_are_not_known_are_not_made_up():
    history = [{"step": step, "loss": loss} for step, loss in enumerate([2.0, 1.9, math.nan], 1)]
    (found,) = diagnose(case_of_state({"log_history": history}, "run")).causes
    assert found.change == "look at the rows of that batch; halve learning_rate; lower max_grad_norm"


def test_what_an_alarm_advised_is_what_to_change():
    alarm = AlarmSeen("ranks", "late", 11, "Rank 1 is late: waiting for data. What to do: look at its disk.")
    (found,) = diagnose(replace(case_of_state(state(FALLING), "run"), alarms=(alarm,))).causes
    assert (found.change, found.evidence) == (
        "look at its disk",
        ("alarm at step 11: Rank 1 is late: waiting for data",),
    )


def test_a_loss_of_0_with_a_gradient_of_nan_is_not_finite_and_no_missing_label():
    """The Trainer's filter: loss 0.0, grad_norm nan (LLaMA-Factory 8261)."""
    found = causes([2.0] + [0.0] * 9, norms=[0.5] + [math.nan] * 9)
    assert "not_finite" in found
    assert "no_signal" not in found
    assert "shown as 0 9 times" in found["not_finite"].evidence[-1]


def test_a_loss_of_exactly_0_is_no_signal():
    found = causes([0.0] * 10, norms=[0.0] * 10)
    assert next(iter(found)) == "no_signal"
    assert "masked" in found["no_signal"].change


def test_a_rising_loss_is_the_learning_rate_and_names_the_step_to_go_back_to():
    rising = [*FALLING[:60], *(0.9 + 0.1 * step + 0.05 * noise(step) for step in range(40))]
    found = causes(rising)["learning_rate_too_high"]
    assert found.weight >= 90
    assert "resume from a checkpoint up to step" in found.change
    assert "halve learning_rate (0.0002 → 0.0001)" in found.change


def test_an_early_explosion_asks_for_a_longer_warm_up():
    found = causes([3.0, 3.1, 6.0, 12.0, 25.0, 50.0, 90.0, *[100.0 + noise(step) for step in range(20)]])
    assert "warm up longer (warmup_steps: 3 → 6)" in found["learning_rate_too_high"].change


def test_one_spike_is_no_cause():
    spiked = list(FALLING)
    spiked[70] = 9.0
    assert causes(spiked) == {}


def test_a_constant_loss_is_stuck_and_a_rate_of_0_is_why():
    assert "stuck" in causes([2.302585] * 40)
    found = causes([2.302585] * 40, rate=0.0)
    assert next(iter(found)) == "rate_zero"


def test_a_rate_far_too_low_is_named():
    flat = [2.5 + 0.02 * noise(step) for step in range(60)]
    found = causes(flat, settings=replace(LORA, learning_rate=1e-8), rate=1e-8)
    assert found["learning_rate_too_low"].change == "learning_rate: 2e-4"
    assert causes(flat, rate=2e-4) == {}


def test_overfitting_names_the_best_step_and_the_rank_to_halve():
    evaluations = {20: 1.5, 40: 1.2, 60: 1.3, 80: 1.5, 100: 1.8}
    found = causes(FALLING, evaluations=evaluations)["overfitting"]
    assert "eval loss was best at step 40 (1.2) and ended at 1.8" in found.evidence[0]
    assert "lora_r 16 → 8" in found.change


DATA = {
    "sources": [{"source": "mine", "read": 100, "dropped": {"empty": 30}, "truncated": 0, "shortened": 25}],
    "train": {"rows": 70, "supervised_tokens": 700},
    "leakage": {"exact": {"count": 4}},
    "general_share": {"asked": 0.15, "reached": 0.05},
}


def of_data(**changes):
    case = replace(case_of_state(state(FALLING), "run"), data={**DATA, **changes})
    return {cause.name: cause for cause in diagnose(case).causes}


def test_the_data_s_account_is_read():
    found = of_data()
    assert list(found) == ["dropped_rows", "leakage", "cut_rows", "general_share"]
    assert found["dropped_rows"].sentence == "30% of the rows of 'mine' were dropped"
    assert "all_masked" in of_data(train={"rows": 70, "supervised_tokens": 0})
    answered = {"source": "mine", "read": 100, "most_common_answer": {"share": 0.995}}
    assert "one_answer" in of_data(sources=[answered])
    assert of_data(sources=[], leakage={}, general_share={}) == {}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"code": 2, "ended": "no such file."}, "refused"),
        ({"code": 1, "ended": "stopped."}, "stopped"),
        ({"code": 75, "ended": "saved."}, "preempted"),
        ({"silent": "no sign of life since noon"}, "silent"),
        ({"alarms": (AlarmSeen("ranks", "gone", 5, "Step 5: rank 1 is gone."),)}, "ranks"),
        ({"alarms": (AlarmSeen("memory", "leak", 5, "Step 5: memory grows."),)}, "memory"),
        ({"alarms": (AlarmSeen("schedule", "zero", 0, "The learning rate is 0."),)}, "schedule"),
        ({"alarms": (AlarmSeen("trainable", "", 1, "Step 1: the gradient is zero."),)}, "no_signal"),
        ({"preflight": ({"what": "learning_rate 0.5 is too large", "cure": "lower it"},)}, "overfit_test"),
        ({"data_wait": 0.5}, "data_wait"),
        ({"unverified": ("checkpoint-20",)}, "unverified"),
    ],
)
def test_what_is_beside_the_curves(changes, name):
    found = diagnose(replace(case_of_state(state(FALLING), "run"), **changes)).causes
    assert [cause.name for cause in found] == [name]
    assert found[0].change
    assert found[0].evidence


def test_a_step_that_was_skipped_in_a_run_that_ended_well_spoils_nothing():
    case = replace(case_of_state(state([*FALLING[:30], math.nan, *FALLING[31:]]), "run"), code=0)
    found = diagnose(case)
    assert [cause.name for cause in found.causes] == ["not_finite"]
    assert found.healthy


@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(math.nan), st.just(math.inf)), max_size=60))
def test_no_curve_makes_it_fail_and_no_finite_one_is_called_not_finite(losses):
    found = causes(losses, norms=[1.0 + 0.1 * noise(step) for step in range(len(losses))])
    assert ("not_finite" in found) == any(not math.isfinite(loss) for loss in losses)
    assert list(found.values()) == sorted(found.values(), key=lambda cause: -cause.weight)


def test_memory_of_a_replay_does_not_grow():
    replay = Replay()
    for step in range(1, 3001):
        replay.see(step, math.nan if step % 2 else 1.0, 0.5, 1e-4)
    assert replay.counts["loss:not_finite"] == 1500
    assert len(replay.verdicts["loss:not_finite"]) == 20
    assert replay.when("loss:not_finite") == "steps 1, 3, 5, 7 (and 1496 more)"


def test_numbers_are_read_as_text_too():
    assert number("1e-05") == 1e-05
    assert math.isnan(number("nan"))
    assert number(True) is None
    assert number("fast") is None
    assert number([1]) is None


def test_another_tool_s_folder_is_read_by_the_state_of_its_last_checkpoint(tmp_path):
    for step in (50, 100):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps(state(FALLING[:step], evaluations={step: 1.0})))
        (folder / "adapter_config.json").write_text("{}")
    found = diagnose_run(tmp_path)
    assert "100 of 100 steps" in found.summary
    assert found.healthy


def test_our_own_folder_is_read_with_recipe_alarms_and_status(tmp_path):
    recipe = {"method": "lora", "learning_rate": 0.002, "warmup_steps": 0.03, "lora_r": 8, "eval_strategy": "no"}
    (tmp_path / "run.json").write_text(json.dumps({"recipe": recipe, "precision": {"fp16": True}}))
    events = [{"kind": "begin", "step": 0, "max_steps": 100}]
    events += [{"kind": "log", "step": step, "loss": loss, "grad_norm": 0.5, "learning_rate": 0.002}
               for step, loss in enumerate(FALLING[:20], 1)]  # fmt: skip
    events.append({"kind": "alarm", "step": 21, "detector": "non_finite", "verdict": "stop",
                   "message": "Step 21: the loss is not finite. More words."})  # fmt: skip
    lines = [{"schema": 1, "attempt": 1, "rank": 0, "time": 1e9 + one["step"], **one} for one in events]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "status.json").write_text(json.dumps({"code": 1, "sentence": "stopped: not finite.", "time": 2e9}))
    (tmp_path / "data.json").write_text("{")
    found = diagnose_run(tmp_path)
    assert [cause.name for cause in found.causes] == ["not_finite"]  # which explains that it stopped
    assert found.causes[0].evidence == ("alarm at step 21: the loss is not finite",)
    assert "bf16: true" in found.causes[0].change
    assert "halve learning_rate (0.002 → 0.001)" in found.causes[0].change
    assert "data.json" in found.problems[0]
    assert json.loads(json.dumps(found.as_values()))["healthy"] is False


def test_watchers_of_an_own_script_leave_alarms_without_curves(tmp_path):
    event = {"schema": 1, "attempt": 1, "rank": 0, "time": 1e9, "kind": "alarm", "step": 4, "detector": "non_finite"}
    event |= {"verdict": "stop", "message": "Step 4: the loss is not finite."}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    found = diagnose_run(tmp_path)
    assert found.summary == "alarms up to step 4 and no curves, which EventLogCallback keeps"
    assert [cause.name for cause in found.causes] == ["not_finite"]


def test_curves_that_only_a_checkpoint_has_are_seen_beside_alarms(tmp_path):
    event = {"schema": 1, "attempt": 1, "rank": 0, "time": 1e9, "kind": "verify", "step": 4}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    (tmp_path / "checkpoint-8").mkdir()
    history = [{"step": step, "loss": loss} for step, loss in enumerate(FALLING[:8], 1)]
    (tmp_path / "checkpoint-8" / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 8}))
    found = diagnose_run(tmp_path)
    assert found.summary.startswith("8 of 8 steps") and found.logs == 8
    (tmp_path / "checkpoint-8" / "trainer_state.json").write_text("{")
    assert "cannot be read" in diagnose_run(tmp_path).problems[-1]


def test_a_run_that_was_refused_says_why(tmp_path):
    (tmp_path / "status.json").write_text(json.dumps({"code": 2, "sentence": "datasets: no such file.", "time": 2e9}))
    found = diagnose_run(tmp_path)
    told = [found.summary, *(text for cause in found.causes for text in (cause.sentence, *cause.evidence))]
    assert "datasets: no such file." in " ".join(told)


@pytest.mark.parametrize(("status", "named"), [("failed", ["overfit_test"]), ("passed", [])])
def test_what_the_overfit_test_named_is_read(status, named, tmp_path):
    causes = [{"kind": "learning_rate", "what": "learning_rate 0.5 is too large", "cure": "lower it"}]
    event = {"schema": 1, "attempt": 1, "time": 1e9, "kind": "overfit", "step": 0, "status": status, "causes": causes}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    (tmp_path / "status.json").write_text(json.dumps({"code": 1 if named else 0, "sentence": "ended.", "time": 2e9}))
    assert [cause.name for cause in diagnose_run(tmp_path).causes] == named


def test_of_several_eval_sets_one_counts():
    history = [{"step": step, "loss": 3.0 - step / 10} for step in range(1, 9)]
    for step in range(1, 9):
        history += [{"step": step, "eval_domain_loss": 0.1 * step}, {"step": step, "eval_loss": 2.0 - step / 10}]
    assert "eval loss 1.2 (best 1.2)" in diagnose(case_of_state({"log_history": history}, "run")).summary


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is no run"):
        diagnose_run(tmp_path)
    (tmp_path / "trainer_state.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        diagnose_run(tmp_path)
    (tmp_path / "trainer_state.json").write_text("[]")
    with pytest.raises(UserError, match="holds no JSON object"):
        diagnose_run(tmp_path)


def test_a_case_without_anything_has_no_cause():
    found = diagnose(Case("empty", Replay()))
    assert found.causes == ()
    assert "No loss is logged yet" in render(found)


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        ("forgetting of tuned is 0.1168, wanted < 0.1", "general_share"),
        ("exact of tuned is 0.2, wanted > 0.5", "more or other rows"),
    ],
)
def test_a_missed_gate_is_a_cause_though_the_curves_are_healthy(sentence, change, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "status.json").write_text(json.dumps({"code": 0, "sentence": "finished", "time": 2e9}))
    gate = [{"condition": "c", "holds": False, "sentence": sentence}]
    (tmp_path / "evaluation.json").write_text(json.dumps({"gate": gate}))
    found = diagnose_run(tmp_path)
    assert not found.healthy
    (cause,) = (cause for cause in found.causes if cause.name == "gate")
    assert cause.evidence == (sentence,) and change in cause.change
    (tmp_path / "evaluation.json").write_text(json.dumps({"gate": [{**gate[0], "holds": True}]}))
    assert diagnose_run(tmp_path).healthy
