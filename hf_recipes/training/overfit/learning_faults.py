"""Faults of what learns: nothing to train, numbers that end, a learning rate that ruins or does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from hf_recipes.training.overfit.cause import Cause
from hf_recipes.training.overfit.evidence import Evidence
from hf_recipes.training.overfit.floor import MARGIN_NATS, loss_bound
from hf_recipes.training.overfit.passes import Passes

_LEAST_FALL = 0.05  # of the way from start to floor; less is not learning
_LEAST_STEPS = 3
_RATE_SHARE = 0.02  # of that way, over the whole run
_TRIAL_STEPS = 30  # a run of fewer is a trial run, whose rate is judged as that of one so long
_RUIN_NATS = 1.0
_THROWN = 3.0  # times their own length: where two steps take the trained weights, and the loss is none the better
_LOST_SHARE = 0.01
_GUESS_NATS = 0.3


def _has_labels(evidence: Evidence) -> bool:
    return evidence.data.untrained_rows < evidence.data.rows


def _not_finite(evidence: Evidence) -> Iterator[Cause]:
    facts, gradients = evidence.precision, evidence.gradients
    if facts is None or not _some_loss_is_bad(evidence):
        return
    if facts.bad_weight:
        yield Cause(
            "precision",
            f"the weights are damaged: {facts.bad_weight} holds numbers that are not finite before the first step",
            "check the base with `hf-recipes verify`, or fetch it again",
        )
        return
    where = f", first in {facts.bad_module}" if facts.bad_module else ""
    where = where or (f", first in the gradient of {gradients.bad}" if gradients and gradients.bad else "")
    half = "float16" in (facts.trained_dtype, facts.computes_in)
    yield Cause(
        "precision",
        f"the loss or its gradient is not finite before the first step{where} ({facts.computes_in} products, "
        f"{facts.trained_dtype} trained weights{'; float16 ends at 65,504' if half else ''})",
        "take dtype: bf16, or fp32" if half else "look for division by zero or logarithms in custom code of the model",
    )


def _some_loss_is_bad(evidence: Evidence) -> bool:
    gradients, losses = evidence.gradients, evidence.shift_losses
    if not _has_labels(evidence):
        return False
    if losses and not math.isfinite(losses[1]):
        return True
    return gradients is not None and (bool(gradients.bad) or not math.isfinite(gradients.norm))


def _nothing_trained(evidence: Evidence) -> Iterator[Cause]:
    facts = evidence.gradients
    if facts is None or not _has_labels(evidence):
        return
    if facts.trained == 0:
        yield Cause(
            "nothing_trainable",
            "no parameter requires a gradient: all are frozen",
            "set requires_grad on what shall learn, after the method was put on the model (is_trainable=True where an "
            "adapter is loaded)",
        )
    elif facts.norm == 0:
        yield Cause(
            "nothing_trainable",
            f"the gradients of all {facts.trained:,} trained parameters are zero: nothing of them reaches the loss",
            "check that the adapter is enabled (set_adapter), that its targets are used in the forward pass, and that "
            "activation checkpointing lets gradients through (enable_input_require_grads)",
        )


def _rate_ruins(evidence: Evidence) -> Iterator[Cause]:
    """Judged by what happened; that the loss is only higher than before is no fault: there was no warm-up."""
    rate = evidence.rate
    if rate is None or len(rate.passes.losses) < 2 or not math.isfinite(rate.passes.losses[0]):
        return
    first, last = rate.passes.losses[0], rate.passes.losses[-1]
    thrown = rate.moved > _THROWN and last > first - _LEAST_FALL * (first - evidence.floor)
    if math.isfinite(last) and last < first + _RUIN_NATS and not thrown:
        return
    steps = len(rate.passes.losses) - 1
    own = evidence.passes
    beside = _beside(own) if own and len(own.losses) > 1 else ""
    yield Cause(
        "learning_rate",
        f"learning_rate {rate.passes.learning_rate:g} is too large: {_steps(steps)} at it take{'s' * (steps == 1)} the "
        f"loss from {first:.2f} to {last:.4g}{beside}",
        f"lower learning_rate{f', to about {own.learning_rate / 10:.0e}' if own else ''}",
    )


def _beside(own: Passes) -> str:
    """What the test's own rate did; a loss that never went below where it began does not fall."""
    first, least = own.losses[0], min(own.losses)
    did = f"falls to {least:.2f}" if f"{least:.2f}" != f"{first:.2f}" else f"does not fall below {first:.2f}"
    return f"; at {own.learning_rate:.1g} it {did}"


def _rate_idles(evidence: Evidence) -> Iterator[Cause]:
    rate, gradients = evidence.rate, evidence.gradients
    if rate is None or gradients is None or not gradients.norm or not math.isfinite(gradients.norm):
        return
    own = f" (the test's own rate: {evidence.passes.learning_rate:.1g})" if evidence.passes else ""
    if rate.passes.learning_rate > 0 and rate.changed_share < _LOST_SHARE:
        yield Cause(
            "precision" if rate.planned_steps and _reach(evidence) >= _RATE_SHARE else "learning_rate",
            f"learning_rate {rate.passes.learning_rate:g} changes {rate.changed_share:.1%} of the trained numbers: its "
            f"steps are smaller than what their dtype can tell apart{own}",
            "raise learning_rate, or keep the trained weights in fp32 (dtype: fp32)",
        )
    elif rate.planned_steps and _reach(evidence) < _RATE_SHARE:
        yield Cause(
            "learning_rate",
            f"learning_rate {rate.passes.learning_rate:g} is too small: {rate.planned_steps} steps at it can take "
            f"about {_fall(evidence, rate.planned_steps):.2g} nats off a loss of {rate.passes.losses[0]:.2f}{own}",
            "raise learning_rate (usual: 2e-5 for full, 2e-4 for LoRA)",
        )


def _fall(evidence: Evidence, steps: int) -> float:
    """What so many steps can take off the loss, to first order, at a rate that is half the peak on average."""
    assert evidence.rate and evidence.gradients
    return evidence.rate.passes.learning_rate * evidence.gradients.absolute_sum * steps / 2


def _reach(evidence: Evidence) -> float:
    """`_fall` of the run's steps as a share of the way from the start to the floor."""
    assert evidence.rate and evidence.rate.planned_steps
    way = evidence.rate.passes.losses[0] - evidence.floor
    return _fall(evidence, max(evidence.rate.planned_steps, _TRIAL_STEPS)) / way if way > MARGIN_NATS else 1.0


def learns_nothing(evidence: Evidence) -> Iterator[Cause]:
    """Asked only where nothing else explains it, and not of a base of random weights: what a method adds to such a one
    may have no way to its frozen head, and nothing is broken then."""
    passes = evidence.passes
    if passes is None or len(passes.losses) <= _LEAST_STEPS or guesses(evidence):
        return
    first, best = passes.losses[0], min(passes.losses)
    if best > loss_bound(first, evidence.floor) and first - best < _LEAST_FALL * (first - evidence.floor):
        yield Cause(
            "unknown",
            f"{_steps(len(passes.losses) - 1)} on {evidence.learned_rows} rows took the loss from {first:.2f} only to "
            f"{best:.2f}, and nothing measured says why",
            "try more trained parameters (lora_r, lora_target_modules), and look at the rows with `hf-recipes inspect`",
        )


def guesses(evidence: Evidence) -> bool:
    """Whether the base knows nothing: its loss is that of a guess among the whole vocabulary."""
    losses = evidence.shift_losses
    return losses is not None and abs(losses[1] - math.log(max(2, evidence.vocabulary))) < _GUESS_NATS


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


LEARNING_RULES: tuple[Callable[[Evidence], Iterator[Cause]], ...] = (
    _not_finite,
    _nothing_trained,
    _rate_ruins,
    _rate_idles,
)
