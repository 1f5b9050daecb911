"""`OverfitWatch`: train loss falls while eval loss, past its best, rises."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from hf_recipes.callbacks.advice import for_overfitting
from hf_recipes.callbacks.overfit_trend import OverfitTrend, OverfitVerdict
from hf_recipes.callbacks.watching import Resumable, alarm, is_full_fine_tune, note
from hf_recipes.core import ranks


class OverfitWatch(Resumable, TrainerCallback):
    """Says, once for each best evaluation, that the run has begun to overfit; stops it when asked to.

    Args:
        patience: evaluations in a row above the best one.
        min_delta: rise of the eval loss (nats) that is more than noise.
        stop: end the run at the alarm.
        metric: the evaluation metric watched; with several eval sets, for example "eval_domain_loss".

    Events: "alarm" with `detector` "overfit", `verdict` (overfit, not_finite), `best_step`, `best_eval_loss`,
    `eval_loss`, `gap` (eval loss above its best), `train_loss`, `train_loss_at_best`.
    """

    detector: OverfitTrend

    def __init__(
        self, patience: int = 3, min_delta: float = 0.01, stop: bool = False, metric: str = "eval_loss"
    ) -> None:
        self.patience, self.min_delta, self.stop, self.metric = patience, min_delta, stop, metric
        self.detector = self.new_detector()

    def settings(self) -> dict[str, Any]:
        return {"patience": self.patience, "min_delta": self.min_delta, "stop": self.stop, "metric": self.metric}

    def new_detector(self) -> OverfitTrend:
        return OverfitTrend(self.patience, self.min_delta)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(state)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            self.detector.see_train(state.global_step, kwargs["logs"]["loss"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = kwargs["metrics"]
        if self.metric not in metrics:
            return
        # Rank 0's number for all: evaluation losses may differ in the last bit, decisions may not.
        verdict = self.detector.see_eval(state.global_step, ranks.broadcast(metrics[self.metric]))
        if verdict.kind == "not_finite":
            sentence = f"Step {verdict.step}: {self.metric} is not finite, and is kept out of the overfitting watch."
            alarm(args, state, verdict.step, "overfit", sentence, verdict=verdict.kind, eval_loss=verdict.eval_loss)
        if verdict.kind != "overfit":
            return
        self._alarm(args, state, kwargs["model"], verdict)
        if self.stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.detector.last_eval_step < 0 and args.eval_strategy != "no":
            note(args, state, "overfit", f"Overfitting was not watched: no evaluation reported {self.metric}.")

    def _alarm(self, args: Any, state: Any, model: Any, verdict: OverfitVerdict) -> None:
        assert verdict.best_eval_loss is not None
        gap = verdict.eval_loss - verdict.best_eval_loss
        done = " Training stops (watch.overfit_stop)." if self.stop else ""
        sentence = (
            f"Step {verdict.step}: overfitting. {self.metric} was best at step {verdict.best_step} "
            f"({verdict.best_eval_loss:.4g}) and is now {verdict.eval_loss:.4g}, {gap:.2g} above it, while train loss "
            f"fell from {verdict.train_loss_at_best:.4g} to {verdict.train_loss:.4g}.{done} "
            f"{for_overfitting(is_full_fine_tune(model))}"
        )
        alarm(
            args,
            state,
            verdict.step,
            "overfit",
            sentence,
            verdict=verdict.kind,
            best_step=verdict.best_step,
            best_eval_loss=verdict.best_eval_loss,
            eval_loss=verdict.eval_loss,
            gap=gap,
            train_loss=verdict.train_loss,
            train_loss_at_best=verdict.train_loss_at_best,
        )
