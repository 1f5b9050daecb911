"""The cheapest strategy that fits, why it, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hf_recipes.core.errors import UserError
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.advice import Change, find_changes, misfit_sentence
from hf_recipes.plan.strategy.candidates import ALL_OPEN, Candidate, Wishes
from hf_recipes.plan.strategy.machines import Machines
from hf_recipes.plan.strategy.reasons import batch_notes, chosen_sentence, does_not_fit, slower
from hf_recipes.plan.strategy.search import Considered, Estimate, Job, cheapest, consider_all


@dataclass(frozen=True)
class Choice:
    """What `choose_strategy` decided.

    Attributes:
        taken: the cheapest that fits; None when nothing fits.
        others: the rest in the order of rising sharing, each with why it was not taken.
        reason: one sentence: why this one or, when nothing fits, "needs X, has Y, change Z".
        wanted_batch: the global batch asked for.
        notes: what else must be said (a global batch that cannot be kept).
        changes: when nothing fits: what would make it fit, each tried.
    """

    taken: Considered | None
    others: tuple[Considered, ...]
    reason: str
    wanted_batch: int
    notes: tuple[str, ...] = field(default=())
    changes: tuple[Change, ...] = field(default=())

    @property
    def runners_up(self) -> tuple[Considered, ...]:
        """The others that fit, the cheapest first."""
        return tuple(sorted((one for one in self.others if one.fits), key=lambda one: one.cost.seconds))

    @property
    def considered(self) -> tuple[Considered, ...]:
        """The taken one, then the others."""
        return (self.taken, *self.others) if self.taken else self.others


def choose_strategy(
    geometry: Geometry,
    settings: TrainingSettings,
    machines: Machines,
    *,
    global_batch: int,
    estimate: Estimate,
    wishes: Wishes = ALL_OPEN,
) -> Choice:
    """Choose layout, micro-batch, accumulation, checkpointing and offload: the cheapest that fits.

    Cost is the time of one optimizer step (`step_cost`); strategies within 3 % of the cheapest count as equal, and the
    one that shares least is taken. What other tools would have to launch (tensor, context and pipeline parallelism) is
    considered only where nothing else fits. The optimizer, the method and the length are the user's: changing them is
    advised when nothing fits, never done.

    Args:
        geometry: of the model with its adapters.
        settings: the job; its micro-batch, accumulation and checkpointing are replaced.
        machines: what it may run on; all devices are used.
        global_batch: wanted rows of an optimizer step.
        estimate: memory of one rank.
        wishes: what is decided already.

    Raises:
        UserError: the wished strategy does not exist for these machines, or `global_batch` is below 1.
    """
    if global_batch < 1:
        raise UserError(f"A global batch of {global_batch} rows has nothing to train on: give 1 or more.")
    job = Job(geometry, settings, machines, global_batch, wishes)
    considered = consider_all(job, estimate)
    taken = cheapest(considered)
    if taken is None:
        return _nothing_fits(job, considered, estimate)
    others = tuple(_explained(one, taken, job) for one in considered if one is not taken)
    reason = chosen_sentence(taken, machines, wishes, _smaller_misfit(considered, taken))
    reached = Candidate(taken.layout, taken.settings).global_batch
    notes = batch_notes(global_batch, reached, taken.layout, wishes)
    return Choice(replace(taken, why=reason), others, reason, global_batch, notes)


def _nothing_fits(job: Job, considered: Sequence[Considered], estimate: Estimate) -> Choice:
    changes = find_changes(job, estimate)
    least = min(considered, key=lambda one: one.memory.device_bytes)
    others = tuple(replace(one, why=does_not_fit(one, job.machines, job.wishes)) for one in considered)
    reason = misfit_sentence(least, changes, job.machines, job.wishes)
    return Choice(None, others, reason, job.global_batch, changes=changes)


def _smaller_misfit(considered: Sequence[Considered], taken: Considered) -> Considered | None:
    """The last one before the taken one that does not fit: the reason to share more than it does."""
    before = considered[: list(considered).index(taken)]
    return next((one for one in reversed(before) if not one.fits), None)


def _explained(one: Considered, taken: Considered, job: Job) -> Considered:
    if one.fits:
        return replace(one, why=slower(one, taken.cost, job.machines))
    return replace(one, why=does_not_fit(one, job.machines, job.wishes))
