"""`LossWatch`: the training loss of every step against the run's own past."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from hf_recipes.callbacks.advice import RunFacts, for_non_finite, lower_learning_rate, tighter_clip
from hf_recipes.callbacks.gradients import GradientGate
from hf_recipes.callbacks.label_prior import LABEL_PRIOR, LabelPrior, choices_of, reference_levels, shared_prior
from hf_recipes.callbacks.loss_trend import EQUAL_STEPS, NARROW_STEPS, LossTrend, LossVerdict
from hf_recipes.callbacks.reading import RankShare, Reading
from hf_recipes.callbacks.schedule import peak_share
from hf_recipes.callbacks.watching import Resumable, alarm, note, run_facts

ONE_SIDED = 0.99
"""A label with more than this share leaves nothing to learn but itself."""

FIRST_STEPS = 4
"""A best level as early as this is that of the weights as loaded: there is no checkpoint before it."""

_ALARMS = ("spike", "rising", "oscillating", "stuck", "not_finite")


class LossWatch(Resumable, TrainerCallback):
    """Watches the loss of every step, over all ranks, and says when it spikes, rises, oscillates or stands still.

    Only watches: it never stops the run. One alarm for each unbroken series of one kind.

    Args:
        sigma: robust standard deviations above the recent level that count as a spike (a factor of two at least).
        window: healthy steps that the noise is learned from.
        locked_after: steps at the level of a model that has learned nothing, or above it, after which that is noted,
            and after as many again the loss is called stuck; in runs above ten times as many steps a tenth of the run,
            up to four times as many.

    Events: "alarm" with `detector` "loss", `verdict` (spike, rising, oscillating, stuck, not_finite), `loss`, `level`,
    `limit`, `best`, `best_step`, `prior`, `grad_norm`; "note" with `verdict` "shifted" for a new stable level or
    "unlearned", and at the end with `first_level`, `best`, `best_step` and `counts`.
    """

    detector: LossTrend

    def __init__(self, sigma: float = 8.0, window: int = 64, locked_after: int = 50) -> None:
        self.sigma, self.window, self.locked_after = sigma, window, locked_after
        self._locked_after = locked_after
        self.detector = self.new_detector()

    def settings(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "window": self.window, "locked_after": self.locked_after}

    def new_detector(self) -> LossTrend:
        return LossTrend(self.sigma, self.window, locked_after=self._locked_after)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._locked_after = max(self.locked_after, min(4 * self.locked_after, state.max_steps // 10))
        self.begin(state)
        self._prior: LabelPrior | None = None
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        self.detector.reference_levels = functools.cache(lambda: self._levels(kwargs["model"], dataset))
        self._gate = GradientGate.open(args, kwargs["model"], kwargs["optimizer"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        reading = self._gate.measure(state.global_step, kwargs["model"])
        if reading.loss is None:
            return
        verdict = self.detector.see(
            reading.step, reading.loss, peak_share(kwargs["optimizer"]), _tokens_a_row(reading.by_rank)
        )
        if not verdict.first or (verdict.kind == "not_finite" and self._gate.guarded):
            return
        if verdict.kind in _NOTES:
            told = _NOTES[verdict.kind](verdict)
            note(args, state, "loss", f"Step {verdict.step}: {told}", **_values(verdict, reading))
        elif verdict.kind in _ALARMS:
            facts = run_facts(args, kwargs["model"], self._gate.max_grad_norm)
            sentence = f"Step {verdict.step}: {self._sentence(verdict, facts, args, state)}"
            alarm(args, state, verdict.step, "loss", sentence, **_values(verdict, reading))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate.close(kwargs["model"])
        self.detector.reference_levels = dict  # lets go of model and dataset
        trend = self.detector
        if not trend.counts:
            note(args, state, "loss", "No training loss could be seen in this run: it is computed outside the model.")
            return
        if trend.start is None:
            note(args, state, "loss", "Loss: not one finite loss was seen.", counts=dict(trend.counts))
            return
        best = "" if trend.best is None else f", lowest level {trend.best:.4g} (by step {trend.best_step})"
        seen = ", ".join(f"{trend.counts[kind]} {kind.replace('_', ' ')}" for kind in _ALARMS if trend.counts[kind])
        note(
            args,
            state,
            "loss",
            f"Loss: {trend.first_level:.4g} in the first steps{best}; unusual steps: {seen or 'none'}.",
            first_level=trend.first_level,
            best=trend.best,
            best_step=trend.best_step,
            counts=dict(trend.counts),
        )

    def _levels(self, model: Any, dataset: Any) -> Mapping[str, float]:
        self._prior = shared_prior(dataset)
        return reference_levels(self._prior, choices_of(model))

    def _sentence(self, verdict: LossVerdict, facts: RunFacts, args: Any, state: Any) -> str:
        if verdict.kind == "not_finite":
            return f"the loss is not finite. {for_non_finite(facts)}"
        if verdict.kind == "stuck":
            return _stuck(verdict, self._prior, facts)
        warm_up = _longer_warm_up(args, state)
        if verdict.kind == "spike":
            return _spike(verdict, facts, warm_up)
        return _rising(verdict, facts, warm_up) if verdict.kind == "rising" else _swings(verdict, facts, warm_up)


def _spike(verdict: LossVerdict, facts: RunFacts, warm_up: str) -> str:
    return (
        f"the loss jumped to {verdict.loss:.4g} (the steps before lay around {verdict.level:.4g}; above "
        f"{verdict.limit:.4g} is no noise of this run). If the level does not come back, or it comes again: look at "
        f"the rows of that batch; {lower_learning_rate(facts)}; {warm_up}; {tighter_clip(facts)}."
    )


def _rising(verdict: LossVerdict, facts: RunFacts, warm_up: str) -> str:
    if verdict.best is None or verdict.best_step is None:
        start = "the loss has been exploding since the first steps"
        return f"{start}, now {verdict.loss:.4g}: start again; {lower_learning_rate(facts)}; {warm_up}."
    if verdict.best_step <= FIRST_STEPS:
        begin = f"the loss is {verdict.level:.4g}, above the {verdict.best:.4g} that the weights began with"
        return f"{begin}: start again; {lower_learning_rate(facts)}; {warm_up}; {tighter_clip(facts)}."
    return (
        f"the loss is rising: now {verdict.loss:.4g}, after a level of {verdict.best:.4g} in the steps to "
        f"{verdict.best_step}. What to do: stop, resume from the last checkpoint before that "
        f"(resume_from_checkpoint: checkpoint-N, N up to {verdict.best_step}), and {lower_learning_rate(facts)}; "
        f"{tighter_clip(facts)}."
    )


def _swings(verdict: LossVerdict, facts: RunFacts, warm_up: str) -> str:
    return (
        f"the loss oscillates from step to step around {verdict.level:.4g}, three times as widely as before, and no "
        f"longer falls: the learning rate is too high, or its warm-up too short. What to do: "
        f"{lower_learning_rate(facts)}; {warm_up}."
    )


def _stuck(verdict: LossVerdict, prior: LabelPrior | None, facts: RunFacts) -> str:
    if verdict.prior is None:
        if verdict.loss == 0:
            return (
                "the loss has been exactly 0 from the start: nothing is trained on. Check that the labels are not all "
                "masked (hf-recipes inspect)."
            )
        same = f"has been {verdict.loss:.6g} for {verdict.steps} steps"
        if verdict.steps < EQUAL_STEPS:
            same = f"has stayed within a ten-thousandth of {verdict.loss:.4g} for {NARROW_STEPS} steps"
        return (
            f"the loss {same}: nothing is learned. Check that the loss depends on trainable parameters, that batches "
            f"differ, and that learning_rate ({facts.learning_rate:g}) is neither 0 nor too small to move the weights "
            "in their dtype."
        )
    causes = ["a head that starts badly (initialise it anew, small)", "a learning_rate that is too low or too high"]
    if prior is not None and prior.top_share > ONE_SIDED:
        causes.insert(0, f"one label: {prior.top_label} is {prior.top_share:.1%} of them (balance the data)")
    if verdict.prior == LABEL_PRIOR:
        learned = "the model predicts the labels' shares and has learned nothing of the inputs"
    else:
        learned = "the model has not begun to learn"
    above = verdict.prior_value is not None and verdict.level is not None and verdict.level > 1.01 * verdict.prior_value
    relation = (
        f"which is above {verdict.prior} ({verdict.prior_value:.4g})" if above else f"which equals {verdict.prior}"
    )
    learned = "a model that ignores the inputs does better" if above else learned
    return (
        f"the loss stays at {verdict.level:.4g}, {relation}: {learned}. What may hold it there: "
        f"{'; '.join(causes)}; inputs that say nothing of the labels (look at them: hf-recipes inspect)."
    )


def _unlearned(verdict: LossVerdict) -> str:
    return (
        f"the loss is still {verdict.level:.4g}, no better than {verdict.prior}: nothing is learned of the inputs yet. "
        "If it stays there, an alarm follows."
    )


def _shift(verdict: LossVerdict) -> str:
    return (
        f"the loss has settled on a higher level, {verdict.level:.4g}. Other data from here on would explain it; if "
        "the data is the same, the learning rate is too high."
    )


def _longer_warm_up(args: Any, state: Any) -> str:
    own = args.get_warmup_steps(state.max_steps)
    longer = max(2 * own, math.ceil(0.05 * state.max_steps))
    return f"warm up longer (warmup_steps: {own} → {longer})"


def _values(verdict: LossVerdict, reading: Reading) -> dict[str, Any]:
    return {
        "verdict": verdict.kind,
        "loss": verdict.loss,
        "level": verdict.level,
        "limit": verdict.limit,
        "best": verdict.best,
        "best_step": verdict.best_step,
        "prior": verdict.prior,
        "grad_norm": reading.norm,
    }


def _tokens_a_row(by_rank: tuple[RankShare, ...]) -> float | None:
    rows = sum(share.rows for share in by_rank)
    return sum(share.supervised_tokens for share in by_rank) / rows if rows else None


_NOTES = {"shifted": _shift, "unlearned": _unlearned}
