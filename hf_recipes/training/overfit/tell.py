"""The result of an overfit test in words."""

from __future__ import annotations

import math

from hf_recipes.training.fit import readable
from hf_recipes.training.overfit.evidence import Evidence
from hf_recipes.training.overfit.learning_faults import guesses
from hf_recipes.training.overfit.verdict import Verdict


def result_text(evidence: Evidence, verdict: Verdict) -> str:
    """One paragraph: the outcome, the numbers behind it, the time."""
    if verdict.status == "failed":
        first, *more = verdict.causes
        also = "".join(f"; also: {cause.what}" for cause in more)
        where = first.kind.replace("_", " ")
        return f"Overfit test failed ({where}, {_time(evidence)}): {first.what}: {first.cure}{also}."
    if verdict.status == "passed":
        return f"Overfit test passed ({_time(evidence)}): {_fall(evidence, verdict)}."
    if evidence.passes is None or len(evidence.passes.losses) < 2:
        return (
            f"Overfit test: this machine is too slow, or too busy, to tell within {evidence.budget_seconds:.0f} s "
            f"({_time(evidence)}): no step was made, so nothing is known but that what costs no step is sound."
        )
    why = "and falls no further" if evidence.passes.stuck else f"within the budget of {evidence.budget_seconds:.0f} s"
    guess = "; the base knows no more than a guess does (random weights?)" if guesses(evidence) else ""
    return (
        f"Overfit test, bound not reached {why} ({_time(evidence)}): {_fall(evidence, verdict)}; nothing measured "
        f"looks broken{guess}."
    )


def failure_sentence(verdict: Verdict) -> str:
    """Why a run does not start: what, the evidence, what to change."""
    first = verdict.causes[0]
    return (
        f"the overfit test failed: {first.what}: {first.cure}; `overfit_check: off` trains regardless, "
        "`hf-recipes overfit` shows all that was measured."
    )


def _fall(evidence: Evidence, verdict: Verdict) -> str:
    passes = evidence.passes
    assert passes is not None, "told apart before"
    steps = len(passes.losses) - 1
    floor = f", floor {evidence.floor:.2f}" if evidence.floor >= 0.005 else ""
    return (
        f"{evidence.learned_rows} of {evidence.data.rows} rows drawn, {steps} step{'' if steps == 1 else 's'} over all "
        f"of them, loss {passes.losses[0]:.2f} → {min(passes.losses):.2f} nats a token "
        f"(bound {verdict.bound:.2f}{floor})"
    )


def _time(evidence: Evidence) -> str:
    return f"{evidence.seconds:.1f} s"


def details(evidence: Evidence, verdict: Verdict) -> list[tuple[str, str]]:
    """What was measured, as name and value, for a terminal; only what there is."""
    data = evidence.data
    lines = [
        ("rows drawn", f"{data.rows}, {data.supervised_share:.0%} of the tokens trained"),
        (
            "labels at their tokens",
            f"{data.aligned[1]:.0%} (one before {data.aligned[0]:.0%}, after {data.aligned[2]:.0%})",
        ),
        ("entropy floor", f"{data.floor:.3f} nats a token ({data.contradicted:.0%} of the rows contradict another)"),
    ]
    if evidence.shift_losses:
        early, there, late = evidence.shift_losses
        lines.append(("loss before", f"{there:.2f} (labels one place early {early:.2f}, late {late:.2f})"))
    if evidence.answers:
        facts = evidence.answers
        losses = f"after their own prompts {facts.own:.2f}, after others' {facts.others:.2f}"
        lines.append(("answers", f"{losses} (own better in {facts.wins:.0%} of {facts.rows}, z {facts.z:.1f})"))
    if evidence.template:
        lines.append(("template", f"{evidence.template.used:.0f} nats, the base's own {evidence.template.own:.0f}"))
    if evidence.gradients:
        groups = ", ".join(f"{_short(name)} {norm:.2g}" for name, norm in evidence.gradients.by_group)
        lines.append(("gradient norm", f"{evidence.gradients.norm:.3g} ({groups})"))
    if evidence.precision:
        dtypes = evidence.precision
        lines.append(("precision", f"{dtypes.computes_in} products, {dtypes.trained_dtype} trained weights"))
    if evidence.copied_to:
        lines.append(("put back from", f"copies of {readable(evidence.copied_bytes)} in {evidence.copied_to}"))
    if evidence.rate:
        rate = evidence.rate
        looked = len(rate.passes.losses) > 1
        what = f"loss {_losses(rate.passes.losses)}" if looked else "below the first of the test's own"
        lines.append(("recipe's learning rate", f"{rate.passes.learning_rate:g}: {what}"))
    if evidence.passes:
        lines.append(("by heart", f"{_losses(evidence.passes.losses)} (bound {verdict.bound:.2f})"))
    return lines


def _short(name: str) -> str:
    """The end of a parameter's name: what it is, without where."""
    return ".".join(part for part in name.split(".") if part not in ("default", "weight", "base_model", "model"))[-40:]


def _losses(losses: tuple[float, ...]) -> str:
    shown = losses if len(losses) <= 10 else (*losses[:3], math.nan, *losses[-6:])
    return " → ".join("…" if math.isnan(loss) and loss not in losses else f"{loss:.2f}" for loss in shown)
