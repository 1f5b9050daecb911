"""From measured numbers to causes: each fault by the numbers it shows, and numbers of healthy set-ups."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.training.overfit.evidence import (
    AnswerFacts,
    Evidence,
    PrecisionFacts,
    RateFacts,
    TemplateFacts,
)
from hf_recipes.training.overfit.facts import DataFacts
from hf_recipes.training.overfit.gradients import GradientFacts
from hf_recipes.training.overfit.passes import Passes
from hf_recipes.training.overfit.tell import failure_sentence, result_text
from hf_recipes.training.overfit.verdict import judge

FEW = settings(max_examples=30, deadline=None)

DATA = DataFacts(
    rows=100,
    supervised_share=0.4,
    untrained_rows=0,
    commonest_share=0.05,
    aligned=(0.02, 1.0, 0.02),
    floor=0.0,
    contradicted=0.0,
    answer_tokens=20.0,
)
# About what SmolLM2 with LoRA shows.
HEALTHY = Evidence(
    data=DATA,
    learned_rows=8,
    vocabulary=49152,
    shift_losses=(13.2, 1.6, 13.4),
    precision=PrecisionFacts("float32", "bfloat16"),
    answers=AnswerFacts(rows=16, own=1.4, others=2.6, wins=1.0, z=-9.0),
    gradients=GradientFacts(trained=921600, norm=1.3, absolute_sum=358.0),
    rate=RateFacts(Passes((1.6, 1.0, 0.5), 5.0, 2e-3), planned_steps=50, moved=0.14, changed_share=1.0),
    passes=Passes((1.6, 0.8, 0.3, 0.1), 8.0, 5e-3),
    budget_seconds=30.0,
    seconds=15.0,
)


def with_data(**changes):
    return replace(HEALTHY, data=replace(DATA, **changes))


def at_rate(rate, losses=(1.6, 1.6, 1.6), **facts):
    passes = Passes(losses, 5.0, rate)
    return replace(HEALTHY, rate=replace(HEALTHY.rate, passes=passes, **facts))


FAULTS = {
    "no rows": (with_data(rows=0), "data", "no training rows"),
    "all masked": (with_data(untrained_rows=100, aligned=(0.0, 0.0, 0.0)), "data", "none of 100 rows"),
    "padding": (with_data(commonest_share=1.0), "data", "rows are padding"),
    "shifted back": (with_data(aligned=(0.0, 0.02, 1.0)), "data", "100% of them are the token one place after"),
    "shifted on": (with_data(aligned=(1.0, 0.02, 0.0)), "data", "100% of them are the token one place before"),
    "random labels": (with_data(aligned=(0.0, 0.01, 0.0)), "data", "do not follow the inputs"),
    "shifted, by loss": (
        replace(HEALTHY, shift_losses=(1.6, 13.0, 12.0)),
        "data",
        "a loss of 1.60 where they are moved",
    ),
    "contradictions": (with_data(floor=0.7, contradicted=0.9), "data", "no training gets below 0.70"),
    "markers": (with_data(broken_markers=("<|eot_id|>",)), "data", "<|eot_id|> stand in the rows as plain text"),
    "template": (replace(HEALTHY, template=TemplateFacts(used=90.0, own=30.0)), "data", "costs 90 nats in it, 30 in"),
    "shuffled": (
        replace(HEALTHY, answers=AnswerFacts(16, 2.0, 2.01, 0.5, -0.3)),
        "data",
        "do not belong to their prompts",
    ),
    # Half of ln 49,152 is 5.4: answers that are cut off their prompts can cost more in a language that the base knows.
    "shuffled, and each answer a surprise": (
        replace(HEALTHY, answers=AnswerFacts(8, 7.3, 6.8, 0.25, 1.5, prompts=4.1)),
        "data",
        "do not belong to their prompts",
    ),
    "frozen": (
        replace(HEALTHY, gradients=GradientFacts(0, 0.0, 0.0), rate=None, passes=None),
        "nothing_trainable",
        "all are frozen",
    ),
    "no gradient": (
        replace(HEALTHY, gradients=GradientFacts(921600, 0.0, 0.0), rate=None, passes=None),
        "nothing_trainable",
        "gradients of all 921,600 trained parameters are zero",
    ),
    "fp16": (
        replace(
            HEALTHY,
            shift_losses=(math.nan,) * 3,
            precision=PrecisionFacts("float16", "float16", bad_module="layers.10.mlp.down_proj"),
            passes=None,
        ),
        "precision",
        "first in layers.10.mlp.down_proj (float16 products, float16 trained weights; float16 ends at 65,504)",
    ),
    "damaged": (
        replace(
            HEALTHY, shift_losses=(math.nan,) * 3, precision=PrecisionFacts("float32", "float32", "lm_head.weight")
        ),
        "precision",
        "lm_head.weight holds numbers that are not finite",
    ),
    "gradient only": (
        replace(HEALTHY, gradients=GradientFacts(10, math.inf, math.inf, bad="lora_B"), rate=None, passes=None),
        "precision",
        "first in the gradient of lora_B",
    ),
    "rate 10": (at_rate(10.0, (1.6, 43.0)), "learning_rate", "learning_rate 10 is too large: 1 step at it takes"),
    "rate 10 on a base of noise": (
        at_rate(10.0, (7.0, 7.2), moved=900.0),
        "learning_rate",
        "learning_rate 10 is too large",
    ),
    "rate to infinity": (at_rate(10.0, (1.6, math.nan)), "learning_rate", "learning_rate 10 is too large"),
    # 50 steps · 1e-8 · 358 / 2 = 9e-5 nats
    "rate 1e-8": (at_rate(1e-8), "learning_rate", "50 steps at it can take about 9e-05 nats off a loss of 1.60"),
    "rate below the dtype": (at_rate(2e-5, changed_share=0.001), "precision", "changes 0.1% of the trained numbers"),
    "stuck": (replace(HEALTHY, passes=Passes((1.6, 1.59, 1.6, 1.58, 1.6), 9.0, 1e-3)), "unknown", "only to 1.58"),
}


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((1.78, 0.9), "from 1.60 to 43; at 0.005 it falls to 0.90"),
        ((1.78, 2.1), "from 1.60 to 43; at 0.005 it does not fall below 1.78"),
        ((1.78,), "from 1.60 to 43"),  # no step was left time for: nothing to say
    ],
)
def test_what_the_tests_own_rate_did_is_told_as_it_was(losses, words):
    evidence = replace(at_rate(10.0, (1.6, 43.0)), passes=Passes(losses, 8.0, 5e-3))
    cause = next(cause for cause in judge(evidence).causes if cause.kind == "learning_rate")
    assert cause.what.endswith(words)
    assert cause.cure == "lower learning_rate, to about 5e-04"


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_fails_and_is_named_first(name):
    evidence, kind, words = FAULTS[name]
    verdict = judge(evidence)
    assert verdict.status == "failed"
    assert verdict.causes[0].kind == kind
    assert words in verdict.causes[0].what
    assert words in failure_sentence(verdict)
    assert "overfit_check: off" in failure_sentence(verdict)
    assert words in result_text(evidence, verdict)


SOUND = {
    "LoRA": (HEALTHY, "passed"),
    # 2e-4 · 358 · 50 / 2 = 1.8 nats
    "LoRA at 2e-4": (at_rate(2e-4, (1.6, 1.55, 1.5)), "passed"),
    "a rate that overshoots without warm-up": (at_rate(1e-2, (1.6, 2.2, 2.4)), "passed"),
    "rate not judged": (replace(HEALTHY, rate=None), "passed"),
    "slow but on its way": (replace(HEALTHY, passes=Passes((1.6, 1.5, 1.4, 1.3, 1.2), 30.0, 1e-3)), "unfinished"),
    "two steps tell nothing": (replace(HEALTHY, passes=Passes((1.6, 1.6, 1.6), 30.0, 1e-3)), "unfinished"),
    "random model": (
        replace(
            HEALTHY,
            shift_losses=(6.25, 6.24, 6.25),
            vocabulary=512,
            answers=AnswerFacts(16, 6.2, 6.2, 0.5, 0.1),
            passes=Passes((6.24, 4.0, 0.5), 2.0, 5e-3),
        ),
        "passed",
    ),
    "random model that adapters cannot move": (
        replace(HEALTHY, shift_losses=(6.25, 6.24, 6.25), vocabulary=512, passes=Passes((6.24,) * 9, 2.0, 5e-3)),
        "unfinished",
    ),
    "a language that the base does not know": (
        replace(HEALTHY, answers=AnswerFacts(8, 7.3, 6.8, 0.25, 1.5, prompts=6.9)),
        "passed",
    ),
    "answers of one token": (
        replace(with_data(answer_tokens=2.0), answers=AnswerFacts(16, 1.0, 1.0, 0.5, 0.2)),
        "passed",
    ),
    "one answer far likelier than all others": (
        replace(HEALTHY, answers=AnswerFacts(8, 2.0, 5.0, 1.0, -1.1)),
        "passed",
    ),
    "some repetitions": (with_data(floor=0.02, contradicted=0.4), "passed"),
    "another template, as likely": (replace(HEALTHY, template=TemplateFacts(used=41.0, own=30.0)), "passed"),
    "known by heart already": (replace(HEALTHY, passes=Passes((0.05,), 2.0, 1e-3)), "passed"),
    "its floor reached": (replace(HEALTHY, floor=0.3, passes=Passes((1.6, 0.5, 0.4), 2.0, 1e-3)), "passed"),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_set_ups_do_not_fail(name):
    evidence, status = SOUND[name]
    verdict = judge(evidence)
    assert (verdict.status, verdict.causes) == (status, ())
    assert ("passed" if status == "passed" else "bound not reached") in result_text(evidence, verdict)


def test_why_a_bound_was_not_reached_is_told():
    slow = SOUND["slow but on its way"][0]
    assert "within the budget of 30 s" in result_text(slow, judge(slow))
    stuck = replace(slow, passes=replace(slow.passes, stuck=True))
    assert "falls no further" in result_text(stuck, judge(stuck))
    random_base = SOUND["random model that adapters cannot move"][0]
    assert "knows no more than a guess does" in result_text(random_base, judge(random_base))


def test_a_certain_fault_stands_before_a_suspicion():
    evidence = replace(FAULTS["shuffled"][0], data=replace(DATA, aligned=(0.0, 0.01, 0.0)))
    assert ["follow the inputs" in cause.what for cause in judge(evidence).causes] == [True, False]


def test_the_rate_of_a_trial_run_of_a_few_steps_is_judged_as_that_of_thirty():
    """2e-4 · 358 · 2 / 2 = 0.07 nats, 4 % of the way here; of 1e-5 0.004 in 2 steps and 0.05 in 30; of 1e-8 nothing."""
    by_rate = {rate: judge(at_rate(rate, planned_steps=2)) for rate in (2e-4, 1e-5, 1e-8)}
    assert [verdict.status for verdict in by_rate.values()] == ["passed", "passed", "failed"]
    assert "2 steps at it can take about 3.6e-06 nats" in by_rate[1e-8].causes[0].what
    assert judge(at_rate(1e-5, planned_steps=60)).status == "passed"


@FEW
@given(st.floats(1e-9, 1e-1), st.integers(1, 10**6))
def test_more_steps_or_a_higher_rate_never_make_it_too_small(rate, steps):
    def is_idle(rate, steps):
        return any("too small" in cause.what for cause in judge(at_rate(rate, planned_steps=steps)).causes)

    if not is_idle(rate, steps):
        assert not is_idle(2 * rate, steps)
        assert not is_idle(rate, 2 * steps)
