"""`GradNormWatch`: the gradient norm against the run's own band."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from hf_recipes.callbacks.advice import for_non_finite, for_spike, for_stuck_gradient, for_vanishing
from hf_recipes.callbacks.gradients import GradientGate
from hf_recipes.callbacks.layer_norms import largest, layer_norms
from hf_recipes.callbacks.metrics_feed import MetricGiver
from hf_recipes.callbacks.norm_band import GUIDE_HIGH, GUIDE_LOW, STUCK_AFTER, NormBand, NormVerdict
from hf_recipes.callbacks.watching import Resumable, alarm, note, run_facts


class GradNormWatch(MetricGiver, Resumable, TrainerCallback):
    """Watches the total gradient norm before clipping, at every step, and says when it leaves the run's own band.

    Only watches: it never stops the run (`NonFiniteGuard` does). One alarm for each unbroken series of one kind.

    Args:
        sigma: half-width of the band, in robust standard deviations of log(norm).
        window: healthy norms the band is learned from.
        warmup: norms before the first judgement; as many in a row on one side of the band are a new level.
        per_layer: measure every layer at every step (one more sync): an alarm then names the layers furthest above
            their own usual norm, and each layer's norm is a metric. Without it the layers that carry the norm are
            named.

    Metrics: `grad_norm_low`, `grad_norm_median`, `grad_norm_high` (the band); with `per_layer` `grad_norm/LAYER`.

    Events: "alarm" with `detector` "grad_norm", `verdict` (exploding, vanishing, shifted, stuck, not_finite),
    `grad_norm`, `low`, `median`, `high`, `layers`; "note" at the end with the band, the counts and the share inside the
    guide's 0.5–2.
    """

    detector: NormBand

    def __init__(self, sigma: float = 8.0, window: int = 128, warmup: int = 16, per_layer: bool = False) -> None:
        self.sigma, self.window, self.warmup, self.per_layer = sigma, window, warmup, per_layer
        self.detector = self.new_detector()
        self._layers: dict[str, float] = {}
        self._layer_windows: dict[str, deque[float]] = {}

    def settings(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "window": self.window, "warmup": self.warmup, "per_layer": self.per_layer}

    def new_detector(self) -> NormBand:
        return NormBand(self.sigma, self.window, self.warmup)

    def metrics(self) -> dict[str, float]:
        """The band as it stands, and each layer's norm of the last step where they are measured."""
        band = self.detector.band()
        edges = dict(zip(("grad_norm_low", "grad_norm_median", "grad_norm_high"), band, strict=True)) if band else {}
        return {**edges, **{f"grad_norm/{name}": norm for name, norm in self._layers.items()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(state)
        self._layers, self._layer_windows = {}, {}
        self._gate = GradientGate.open(args, kwargs["model"], kwargs["optimizer"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        reading = self._gate.measure(state.global_step, kwargs["model"])
        if reading.norm is None:
            return
        verdict = self.detector.judge(reading.norm)
        usual = self._measure_layers(kwargs["model"], verdict) if self.per_layer else {}
        if not verdict.first or verdict.kind in ("healthy", "warming_up"):
            return
        if verdict.kind == "not_finite" and (self._gate.guarded or self._gate.loss_scaled):
            return  # the guard's alarm says it, or the loss scaler deals with it
        if verdict.norm == 0 and control.should_training_stop:
            return  # TrainableGuard has said so
        layers = []
        if verdict.kind in ("exploding", "shifted"):
            norms = self._layers or layer_norms(kwargs["model"], self._gate.clipped_by())
            layers = largest(norms, usual)
        told = f"{_sentence(verdict)}{_layers_told(layers, bool(usual))}"
        sentence = f"Step {reading.step}: {told} {self._advice(verdict, args, kwargs['model'])}"
        alarm(
            args,
            state,
            reading.step,
            "grad_norm",
            sentence,
            verdict=verdict.kind,
            grad_norm=verdict.norm,
            low=verdict.low,
            median=verdict.median,
            high=verdict.high,
            layers=[{"layer": name, "grad_norm": norm, "factor": factor} for name, norm, factor in layers],
        )

    def _measure_layers(self, model: Any, verdict: NormVerdict) -> dict[str, float]:
        """Measure every layer; returns what each was usually before, which bad steps do not change."""
        self._layers = layer_norms(model, self._gate.clipped_by())
        usual = {name: statistics.median(window) for name, window in self._layer_windows.items()}
        if verdict.kind in ("healthy", "warming_up"):
            for name, norm in self._layers.items():
                self._layer_windows.setdefault(name, deque(maxlen=self.window)).append(norm)
        return usual

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate.close(kwargs["model"])
        counts = self.detector.counts
        judged = sum(counts.values())
        if not judged:
            note(args, state, "grad_norm", "No gradient norm could be seen in this run.")
            return
        band = self.detector.band()
        learned = (
            f"median {band[1]:.3g}, healthy {band[0]:.3g} to {band[2]:.3g}" if band else "too few steps for a band"
        )
        guide = f"{self.detector.in_guide} of {judged} steps lay within the guides' {GUIDE_LOW:g} to {GUIDE_HIGH:g}"
        spikes = f"{counts['exploding']} spikes, {counts['vanishing']} vanishing, {counts['not_finite']} not finite"
        note(
            args,
            state,
            "grad_norm",
            f"Gradient norm before clipping: {learned}; {spikes}; {guide}, which depends on model and method.",
            band=band,
            counts=dict(counts),
            in_guide=self.detector.in_guide,
        )

    def _advice(self, verdict: NormVerdict, args: Any, model: Any) -> str:
        facts = run_facts(args, model, self._gate.max_grad_norm)
        if verdict.kind == "not_finite":
            return for_non_finite(facts)
        if verdict.kind == "stuck":
            return for_stuck_gradient(facts)
        if verdict.kind == "vanishing" or (verdict.median is not None and verdict.norm < verdict.median):
            return for_vanishing()
        return for_spike(facts)


def _sentence(verdict: NormVerdict) -> str:
    if verdict.kind == "not_finite":
        return "the gradient norm is not finite, and this update would make the weights so; NonFiniteGuard prevents it."
    if verdict.norm == 0:
        return "the gradient is zero: nothing is learned from this step."
    if verdict.kind == "stuck":
        return f"the gradient norm is {verdict.norm:.6g} to the last bit for {STUCK_AFTER} steps."
    band = f"(the run's median is {verdict.median:.3g}, its band {verdict.low:.3g} to {verdict.high:.3g})"
    if verdict.kind == "shifted":
        return f"the gradient norm has moved to a new level, now {verdict.norm:.3g} {band}."
    return f"the gradient norm {verdict.norm:.3g} is {verdict.kind} {band}."


def _layers_told(layers: Sequence[tuple[str, float, float]], against_usual: bool) -> str:
    if not layers:
        return ""
    told = [
        f"{name} {norm:.3g} ({f'{factor:.3g} times its usual' if against_usual else f'{factor:.0%} of the square'})"
        for name, norm, factor in layers
    ]
    return f" Most of it comes from {', '.join(told)}."
