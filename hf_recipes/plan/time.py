"""How long a run takes: arithmetic over what a device reaches of its peak, the floors that small batches run into, and
what lies between the steps. A band, with what it rests on. The step itself is `plan.step_time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.core.accelerators import Accelerator
from hf_recipes.core.errors import UserError
from hf_recipes.core.flops import Work
from hf_recipes.plan.compute import Arithmetic, arithmetic, forward_flops, matmul_weights_of
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.schedule import Schedule
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.step_time import speeds, step_parts
from hf_recipes.plan.utilization import Band, compute_dtype, default_utilization, peak_flops

_MEASURED_BAND = 0.1  # between runs of the same job on the same device
_NETWORK = 12.5e9  # 100 Gbit/s


@dataclass(frozen=True)
class Measured:
    """What a run of the like reached: `tokens_per_second` (positions, padding included, all ranks) on the same devices,
    or `mfu` (useful products and attention of the peak, as `hf-recipes profile` counts), which carries over to others.
    `source` says where it is from."""

    tokens_per_second: float | None = None
    mfu: float | None = None
    source: str = "measured"


@dataclass(frozen=True)
class BetweenSteps:
    """What a run does besides training.

    Attributes:
        evaluations: how often the eval loss is computed.
        eval_work: of one evaluation.
        saves: checkpoints written.
        save_bytes: of one.
        disk_write: bytes a second.
    """

    evaluations: int = 0
    eval_work: Work = field(default_factory=lambda: Work(0, 0, 0))
    saves: int = 0
    save_bytes: float = 0.0
    disk_write: float = 1e9


@dataclass(frozen=True)
class TimeEstimate:
    """How long a run takes.

    Attributes:
        schedule: its steps.
        arithmetic: FLOPs of the whole run over all devices.
        step_seconds, hours: bands; `hours` with evaluation and saving.
        tokens_per_second: useful tokens of all devices while training.
        parts: expected seconds of the whole run by what they go into; they add up to the expected hours.
        utilization: share of the peak reached by all computed FLOPs, from the step's whole time.
        basis: what the band rests on, one sentence.
    """

    schedule: Schedule
    arithmetic: Arithmetic
    step_seconds: Band
    hours: Band
    tokens_per_second: Band
    parts: Mapping[str, float]
    utilization: Band
    basis: str


def estimate_time(
    geometry: Geometry,
    settings: TrainingSettings,
    layout: Layout,
    accelerator: Accelerator,
    schedule: Schedule,
    epoch_work: Work,
    *,
    padding_share: float = 0.0,
    measured: Measured | None = None,
    between: BetweenSteps | None = None,
    network: float = _NETWORK,
) -> TimeEstimate:
    """Estimate a run.

    Args:
        geometry: of the model with its adapters.
        settings: the job; its micro-batch and accumulation as in `schedule`.
        layout: how it lies over the devices.
        accelerator: one of them.
        schedule: its steps.
        epoch_work: tokens, labelled ones and pairs of one pass over all rows, without padding.
        padding_share: of the positions computed, those that are padding.
        measured: takes the place of the default utilisation.
        between: evaluation and saving.
        network: bytes a second that one machine sends to another.

    Raises:
        UserError: the device has no rate in the job's dtype, or a measured figure is none.
    """
    between = between or BetweenSteps()
    run_work = _scaled(epoch_work, schedule.epochs / (1.0 - padding_share))
    whole = arithmetic(geometry, settings, run_work)
    share = 1.0 / (schedule.steps * layout.ranks)
    peak = peak_flops(accelerator, settings)
    tokens = epoch_work.tokens * schedule.epochs / schedule.steps
    if measured is None:
        step, parts, basis = _default_step(geometry, settings, layout, accelerator, whole.times(share), network)
    else:
        step, basis = _measured_step(measured, whole, run_work, schedule, peak * layout.ranks, padding_share)
        parts = {"compute": step.expected}
    aside = _between_seconds(geometry, between, peak * layout.ranks, whole, step, schedule)
    seconds = step.times(schedule.steps)
    return TimeEstimate(
        schedule=schedule,
        arithmetic=whole,
        step_seconds=step,
        hours=Band(*((each + sum(aside.values())) / 3600 for each in (seconds.low, seconds.expected, seconds.high))),
        tokens_per_second=Band(tokens / step.high, tokens / step.expected, tokens / step.low),
        parts={**{name: each * schedule.steps for name, each in parts.items() if each}, **aside},
        utilization=Band(*(whole.computed * share / peak / each for each in (step.high, step.expected, step.low))),
        basis=basis,
    )


def measured_from_events(events: Iterable[Mapping[str, Any]]) -> Measured | None:
    """What the last run in an events.jsonl told of its throughput; None where it told nothing."""
    found = [each for each in events if each.get("detector") == "throughput" and "tokens_per_second" in each]
    told = [each for each in found if each.get("kind") == "note"]
    if not told:
        return None
    return Measured(float(told[-1]["tokens_per_second"]), _optional(told[-1].get("mfu")), "measured in a run")


def measured_from_profile(profile: Mapping[str, Any]) -> Measured:
    """What `hf-recipes profile` measured (its profile.json, or `Profile.as_dict()`): positions of all ranks a second.

    Raises:
        UserError: it is no such profile.
    """
    try:
        rates = profile["throughput"]
        everybody = float(rates["tokens_all_ranks"]) / float(rates["tokens"])
        return Measured(float(rates["positions"]) * everybody, float(rates["mfu"]), "measured by hf-recipes profile")
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise UserError("This is no profile.json of hf-recipes profile: it holds no throughput.") from None


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)


def _scaled(work: Work, factor: float) -> Work:
    return Work(round(work.tokens * factor), round(work.supervised * factor), round(work.pairs * factor))


def _default_step(
    geometry: Geometry,
    settings: TrainingSettings,
    layout: Layout,
    accelerator: Accelerator,
    of_rank: Arithmetic,
    network: float,
) -> tuple[Band, dict[str, float], str]:
    """Seconds of a step as a band, its expected parts, and the basis."""
    use = default_utilization(accelerator, settings, geometry, matmul_weights_of(geometry).forward)
    fast, parts, slow = (
        step_parts(geometry, settings, layout, accelerator, of_rank, speed, network) for speed in speeds(use)
    )
    basis = (
        f"{use.expected:.0%} of the dense {compute_dtype(settings)} peak of {accelerator.name} "
        f"({use.low:.0%} to {use.high:.0%}), from published runs"
    )
    return Band(sum(fast.values()), sum(parts.values()), sum(slow.values())), parts, basis


def _measured_step(
    measured: Measured, whole: Arithmetic, run_work: Work, schedule: Schedule, peak: float, padding_share: float
) -> tuple[Band, str]:
    """`run_work` counts padding as computed; an MFU counts useful tokens alone."""
    if measured.tokens_per_second:
        seconds = run_work.tokens / schedule.steps / measured.tokens_per_second
        basis = f"{measured.tokens_per_second:,.0f} tokens/s, {measured.source}"
    elif measured.mfu:
        seconds = whole.useful * (1.0 - padding_share) / schedule.steps / (peak * measured.mfu)
        basis = f"MFU {measured.mfu:.0%}, {measured.source}"
    else:
        raise UserError("A measured speed needs tokens a second or an MFU above 0.")
    return Band(seconds * (1 - _MEASURED_BAND), seconds, seconds * (1 + _MEASURED_BAND)), basis


def _between_seconds(
    geometry: Geometry, between: BetweenSteps, peak: float, whole: Arithmetic, step: Band, schedule: Schedule
) -> dict[str, float]:
    """Evaluation at the training steps' own rate (FLOPs a second), text generation left out; saving at the disk's."""
    rate = whole.computed / (step.expected * schedule.steps)
    evaluation = between.evaluations * forward_flops(geometry, between.eval_work) / min(rate, peak)
    saving = between.saves * between.save_bytes / between.disk_write
    return {name: each for name, each in (("evaluation", evaluation), ("saving", saving)) if each}
