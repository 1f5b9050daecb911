"""Each layout at its best: the cheapest of its ways that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.candidates import ALL_OPEN, Candidate, Wishes, launched_layouts, planned_layouts, ways
from hf_recipes.plan.strategy.machines import Machines
from hf_recipes.plan.strategy.step_cost import StepCost, StepWork, cost_of, work_of

# How much memory a rank of a job takes (see `plan.memory.estimate.estimate_memory`, with the device bound).
Estimate = Callable[[Geometry, TrainingSettings, Layout], MemoryEstimate]
# Of strategies that cost the same up to so much, the one that shares least is taken: no cost model is more exact.
SAME_COST = 1.03


@dataclass(frozen=True)
class Job:
    """What is to be trained, on what, and what is decided already.

    Attributes:
        geometry: of the model with its adapters.
        settings: micro-batch, accumulation and checkpointing are replaced.
        machines: what it may run on; all devices are used.
        global_batch: wanted rows of an optimizer step.
        wishes: what is decided already.
    """

    geometry: Geometry
    settings: TrainingSettings
    machines: Machines
    global_batch: int
    wishes: Wishes = ALL_OPEN

    @cached_property
    def work(self) -> StepWork:
        """What all candidates share, counted once."""
        return work_of(self.geometry, self.settings)

    def ways(self, layout: Layout) -> list[Candidate]:
        """All ways to run it on a layout."""
        apart = self.machines.host_link > 0
        return ways(self.settings, layout, self.global_batch, self.wishes, host_is_apart=apart)


@dataclass(frozen=True)
class Considered:
    """A strategy at its best: the cheapest way that fits or, where none does, the one that needs least.

    Attributes:
        layout, settings: how it runs; micro-batch, accumulation and checkpointing filled in.
        memory: of one rank.
        cost: of one optimizer step.
        fits: in the device's memory, and the host's where it is known.
        why: a sentence: why it is not the one taken (for the taken one, why it is).
    """

    layout: Layout
    settings: TrainingSettings
    memory: MemoryEstimate
    cost: StepCost
    fits: bool
    why: str = ""


def consider_all(job: Job, estimate: Estimate) -> list[Considered]:
    """All layouts at their best, in the order of rising sharing; those that other tools launch only where nothing else
    fits.

    Raises:
        UserError: the wished strategy does not exist for these machines.
    """
    considered = [at_best(job, layout, estimate) for layout in launched_layouts(job.settings, job.machines, job.wishes)]
    if not any(one.fits for one in considered) and not job.wishes.strategy:
        planned = planned_layouts(job.geometry, job.settings, job.machines)
        considered += [at_best(job, layout, estimate) for layout in planned]
    return considered


def at_best(job: Job, layout: Layout, estimate: Estimate) -> Considered:
    """One layout at its best. The costs of its ways are cheap to tell, their memory is not: it is estimated from the
    cheapest way upwards until one fits, and not at all where the leanest does not."""
    candidates = job.ways(layout)
    least = _measured(job, _leanest(candidates), estimate)
    if not least.fits:
        return least
    for candidate in sorted(candidates, key=lambda each: _cost(job, each).seconds):
        measured = _measured(job, candidate, estimate)
        if measured.fits:
            return measured
    return least


def leanest(job: Job, estimate: Estimate) -> Considered:
    """What needs least of all this package launches: smallest micro-batch, most checkpointing."""
    layouts = launched_layouts(job.settings, job.machines, job.wishes)
    measured = [_measured(job, _leanest(job.ways(layout)), estimate) for layout in layouts]
    return min(measured, key=lambda one: (not one.fits, one.memory.device_bytes))


def cheapest(considered: Iterable[Considered]) -> Considered | None:
    """Of those that fit, the first (the one that shares least) that costs no more than the cheapest. What moves states
    to the host is taken only where nothing fits without: how fast that is, is known least."""
    fitting = [one for one in considered if one.fits]
    fitting = [one for one in fitting if not (one.layout.offload_optimizer or one.layout.offload_weights)] or fitting
    if not fitting:
        return None
    least = min(one.cost.seconds for one in fitting)
    return next(one for one in fitting if one.cost.seconds <= least * SAME_COST)


def fits(memory: MemoryEstimate, layout: Layout, machines: Machines, headroom: float = 0.0) -> bool:
    """Whether a rank fits in its device and, where the host's memory is known, a node's ranks in their host."""
    if memory.device_bytes > machines.memory_bytes * (1 - headroom):
        return False
    host = sum(memory.host.values()) * layout.ranks_per_node
    return machines.host_memory_bytes is None or host <= machines.host_memory_bytes


def _leanest(candidates: Sequence[Candidate]) -> Candidate:
    """The smallest micro-batch with the most checkpointing: `ways` lists checkpointings in that order."""
    smallest = min(each.settings.micro_batch for each in candidates)
    return [each for each in candidates if each.settings.micro_batch == smallest][-1]


def _cost(job: Job, candidate: Candidate) -> StepCost:
    return cost_of(job.work, candidate.settings, candidate.layout, job.machines)


def _measured(job: Job, candidate: Candidate, estimate: Estimate) -> Considered:
    memory = estimate(job.geometry, candidate.settings, candidate.layout.one_replica)
    return Considered(
        candidate.layout,
        candidate.settings,
        memory,
        _cost(job, candidate),
        fits(memory, candidate.layout, job.machines, job.wishes.headroom),
    )
