"""Causes that the curves and the alarms show: not finite, diverging, stuck, overfitting, a wrong schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from hf_recipes.callbacks.advice import (
    RunFacts,
    for_non_finite,
    for_overfitting,
    for_zero_gradient,
    lower_learning_rate,
    tighter_clip,
)
from hf_recipes.doctor.run.case import Case
from hf_recipes.doctor.run.cause import Cause

_EARLY_SHARE = 0.1  # of a run: what happens there is the warm-up's
_FLAT_SHARE = 0.02
_EQUAL_PRINTED = 10  # losses in a row that are equal to four digits, which five may be by chance
_FEW_BAD_STEPS = 2
# Rates below which nothing is learned in a usual run (the guides' ranges begin at 1e-5 for full and 1e-4 for LoRA).
_LOW_FULL, _LOW_ADAPTER = 1e-7, 1e-6


def on_not_finite(case: Case) -> Iterator[Cause]:
    """NaN and infinity, also where a trainer shows the loss as 0 and only the gradient tells."""
    replay, facts = case.replay, _facts(case)
    rang = [*case.rang("non_finite"), *case.rang("loss", "not_finite"), *case.rang("grad_norm", "not_finite")]
    evidence = [f"alarm at step {one.step}: {_first_sentence(one.message)}" for one in rang[:2]]
    loss, norm = "loss:not_finite", "grad_norm:not_finite"
    if replay.counts[loss]:
        evidence.append(f"the loss is not finite at {replay.when(loss)}")
    if replay.counts[norm]:
        evidence.append(f"the gradient norm is not finite at {replay.when(norm)}")
    if not evidence:
        return
    hidden = replay.counts[norm] and not replay.counts[loss] and replay.zero_losses
    if hidden:
        evidence.append(
            f"the loss is shown as 0 {replay.zero_losses} times, as trainers do with one that is not finite"
        )
    steps = [*(one.step for one in rang), *replay.steps.get(loss, []), *replay.steps.get(norm, [])]
    first = min(steps) <= 1
    overcome = case.code == 0 and len(set(steps)) <= _FEW_BAD_STEPS
    sentence = "the loss or its gradient is not finite" + (" from the first step on" if first else "")
    if overcome:
        sentence = "a step was not finite, and the run went on past it"
    change = _after_colon(for_non_finite(facts, first_step=first and not overcome))
    yield Cause("not_finite", 45 if overcome else 100, sentence, _as_known(case, change), tuple(evidence))


def on_no_signal(case: Case) -> Iterator[Cause]:
    """A loss of exactly 0, or no gradient: nothing is trained on."""
    replay = case.replay
    silent = case.rang("trainable")
    evidence = [f"alarm at step {one.step}: {_first_sentence(one.message)}" for one in silent[:1]]
    all_zero = replay.losses >= 2 and replay.zero_losses == replay.losses and not replay.counts["grad_norm:not_finite"]
    if all_zero:
        evidence.append(f"the loss is exactly 0 in all {replay.losses} logs")
    if not evidence:
        return
    change = for_zero_gradient()
    yield Cause(
        "no_signal", 98, "nothing is learned from: no label or no parameter takes part", change, tuple(evidence)
    )


def on_divergence(case: Case) -> Iterator[Cause]:
    """A learning rate that is too high: rising, oscillating, spikes again and again."""
    replay, facts = case.replay, _facts(case)
    weights = {"rising": 90, "oscillating": 70, "spike": 55}
    evidence, weight = [], 0
    for kind, gain in weights.items():
        name, rang = f"loss:{kind}", case.rang("loss", kind)
        count = max(replay.counts[name], len(rang))
        if not count or (kind == "spike" and count < 2):
            continue
        when = replay.when(name) if replay.counts[name] else f"step {rang[0].step}"
        evidence.append(f"the loss {_SAID[kind]} at {when}{_level(case, name)}")
        weight = max(weight, gain)
    name, rang = "grad_norm:exploding", case.rang("grad_norm", "exploding")
    if count := max(replay.counts[name], len(rang)):
        when = replay.when(name) if replay.counts[name] else f"step {rang[0].step}"
        evidence.append(f"the gradient norm left its band upwards at {when}")
        weight = max(weight, 40 if count == 1 else 52)
    if not evidence:
        return
    steps = [step for one in ("loss:rising", "loss:spike", "loss:oscillating") for step in replay.steps.get(one, [])]
    most = case.settings.max_steps or replay.last_step
    early = bool(steps) and min(steps) <= max(20, _EARLY_SHARE * most)
    knobs = [lower_learning_rate(facts), tighter_clip(facts)]
    if early or case.settings.warm_up_steps == 0:
        knobs.insert(1, _longer_warm_up(case, most))
    if weight >= 90 and replay.loss.best_step:
        knobs.insert(0, f"resume from a checkpoint up to step {replay.loss.best_step}")
    sentence = "the learning rate is too high for this run" if weight >= 50 else "a step went too far"
    yield Cause("learning_rate_too_high", weight, sentence, _as_known(case, "; ".join(knobs)), tuple(evidence))


def on_stuck(case: Case) -> Iterator[Cause]:
    """A loss that does not move: rate zero, frozen parameters, a prior."""
    replay = case.replay
    if replay.zero_losses and replay.zero_losses == replay.losses:
        return  # `on_no_signal` says it, or NaN is behind it
    peak = replay.peak_rate
    if peak == 0:
        yield Cause(
            "rate_zero",
            96,
            "the learning rate is 0 throughout",
            "learning_rate above 0, and warmup_steps below the run's length",
            (f"0 in all logs up to step {replay.last_step}",),
        )
        return
    rang = case.rang("loss", "stuck")
    name = "loss:stuck"
    by_rounding = replay.rounded and replay.longest_equal < _EQUAL_PRINTED
    seen = replay.counts[name] and not by_rounding
    if seen or rang:
        evidence = [f"the loss stood still at {replay.when(name)}" if seen else f"step {rang[0].step}"]
        evidence += [_first_sentence(one.message) for one in rang[:1]]
        rate = f" (learning_rate {peak:g})" if peak else ""
        change = (
            f"see that parameters are trained and batches differ (hf-recipes inspect, overfit){rate}; a head that "
            "starts badly: initialise it small; one label in nearly all rows: balance them"
        )
        yield Cause("stuck", 80, "the loss does not move: nothing is learned of the inputs", change, tuple(evidence))
        return
    yield from _on_low_rate(case)


def _on_low_rate(case: Case) -> Iterator[Cause]:
    replay, peak = case.replay, case.replay.peak_rate
    low = _LOW_ADAPTER if case.settings.full is False else _LOW_FULL
    first, last = replay.first_loss, replay.last_loss
    if peak is None or not 0 < peak < low or first is None or last is None or replay.losses < 5:
        return
    if abs(last - first) <= _FLAT_SHARE * abs(first):
        told = (f"learning rate {peak:g} at its peak", f"loss {first:.4g} → {last:.4g} in {replay.last_step} steps")
        usual = "2e-4" if case.settings.full is False else "2e-5"
        yield Cause(
            "learning_rate_too_low",
            60,
            "the learning rate is too low to learn anything",
            f"learning_rate: {usual}",
            told,
        )


def on_overfitting(case: Case) -> Iterator[Cause]:
    """Evaluations above the best while training loss falls."""
    replay, rang = case.replay, case.rang("overfit", "overfit")
    name = "overfit:overfit"
    if not replay.counts[name] and not rang:
        return
    trend = replay.overfit
    evidence = [f"alarm at step {one.step}" for one in rang[:1]]
    if trend.best_eval_loss is not None and replay.last_eval is not None:
        best = f"eval loss was best at step {trend.best_step} ({trend.best_eval_loss:.4g})"
        evidence.append(f"{best} and ended at {replay.last_eval:.4g}")
    if trend.train_loss is not None and trend.train_loss_at_best is not None:
        evidence.append(f"train loss went from {trend.train_loss_at_best:.4g} to {trend.train_loss:.4g} since")
    settings, knobs = case.settings, _after_colon(for_overfitting(bool(case.settings.full)))
    if settings.lora_r:
        knobs += f" (lora_r {settings.lora_r} → {max(4, settings.lora_r // 2)})"
    yield Cause("overfitting", 60, "the run learned its training rows by heart", knobs, tuple(evidence))


def on_schedule(case: Case) -> Iterator[Cause]:
    """A schedule that is not the run's."""
    replay = case.replay
    for one in case.rang("schedule")[:1]:
        change = "warmup_steps: 0.03, lr_scheduler_type: cosine_with_min_lr, lr_scheduler_kwargs: {min_lr_rate: 0.1}"
        weight = 65 if one.verdict in ("zero", "peak_not_reached", "ends_early") else 35
        yield Cause(
            "schedule",
            weight,
            "the learning-rate schedule does not fit the run",
            change,
            (f"alarm at step {one.step}: {_first_sentence(one.message)}",),
        )
        return
    if replay.counts["rate:jump"]:
        told = f"the learning rate jumped up at {replay.when('rate:jump')}, after it had begun to fall"
        yield Cause(
            "schedule",
            35,
            "the learning-rate schedule does not fit the run",
            "resume with the same number of steps and schedule, or start anew",
            (told,),
        )


def _facts(case: Case) -> RunFacts:
    """The run's facts; where the rate is not known any usual one will do, since `_as_known` takes its figures out."""
    found = case.settings.facts(case.replay.peak_rate)
    return found if found is not None else RunFacts(1e-4, 1.0, False, case.settings.fp16)


def _as_known(case: Case, advice: str) -> str:
    """Advice without figures of settings that are not known."""
    if case.settings.facts(case.replay.peak_rate) is None:
        advice = re.sub(r"halve learning_rate \(\S+ → \S+\)", "halve learning_rate", advice)
    if case.settings.max_grad_norm is None:
        advice = re.sub(r"lower max_grad_norm \(\S+ → \S+\)", "lower max_grad_norm", advice)
    return advice


_SAID = {"rising": "rises", "oscillating": "swings from step to step", "spike": "jumps"}


def _level(case: Case, name: str) -> str:
    verdicts = case.replay.verdicts.get(name) or []
    if not verdicts:
        return ""
    loss, best = getattr(verdicts[0], "loss", None), getattr(verdicts[0], "best", None)
    if loss is None or not math.isfinite(loss):
        return ""
    return f" (to {loss:.4g}" + (f", from a level of {best:.4g})" if best is not None else ")")


def _longer_warm_up(case: Case, most: int) -> str:
    own = case.settings.warm_up_steps
    longer = max(2 * (own or 0), math.ceil(0.05 * max(most, 1)))
    return f"warm up longer (warmup_steps: {'?' if own is None else own} → {longer})"


def _after_colon(advice: str) -> str:
    return advice.removeprefix("What to do: ").rstrip(".")


def _first_sentence(message: str) -> str:
    head, _, rest = message.partition(": ")
    body = rest if head.startswith("Step ") else message
    return body.split(". ")[0].rstrip(".")
