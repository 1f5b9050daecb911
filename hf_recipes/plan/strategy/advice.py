"""When nothing fits: the smallest changes that would make it fit, found by trying them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hf_recipes.plan.strategy.candidates import Wishes, plain_adam
from hf_recipes.plan.strategy.machines import Machines
from hf_recipes.plan.strategy.reasons import does_not_fit, gib
from hf_recipes.plan.strategy.search import Considered, Estimate, Job, leanest
from hf_recipes.plan.strategy.variants import lora_settings, qlora_settings, with_lora

# Methods that train every weight they touch in place, for which LoRA is the smaller alternative.
_WHOLE = ("full", "partial")
_MOST_DEVICES = 64
_SHORTEST = 128


@dataclass(frozen=True)
class Change:
    """A change that makes the job fit.

    Attributes:
        words: the change, as recipe keys where it is one.
        needs_bytes: of one device with it, at the leanest.
        considered: how it would run.
    """

    words: str
    needs_bytes: float
    considered: Considered


@dataclass(frozen=True)
class _Trial:
    words: str
    job: Job


def find_changes(job: Job, estimate: Estimate) -> tuple[Change, ...]:
    """Every single change that makes the job fit, the smallest of its kind; where none does, pairs of them.

    Args:
        job: one that nothing fits.
        estimate: memory of one rank.
    """
    kinds = (_wish_trials(job), _length_trials(job, estimate), _optimizer_trials(job), _method_trials(job))
    singles = [*_smallest_of_each(kinds, estimate), *_smallest_of_each([_device_trials(job, estimate)], estimate)]
    if singles:
        return tuple(singles)
    pairs = [
        [_Trial(f"{first.words} with {second.words}", second.job) for second in (*lengths, *devices)]
        for first in _method_trials(job)
        for lengths, devices in [(_length_trials(first.job, estimate), _device_trials(first.job, estimate))]
    ]
    return tuple(_smallest_of_each(pairs, estimate))


def _smallest_of_each(kinds: Iterable[Iterable[_Trial]], estimate: Estimate) -> list[Change]:
    """Of each kind of change the first that is enough."""
    tried = (next((change for trial in kind if (change := _tried(trial, estimate))), None) for kind in kinds)
    return [change for change in tried if change]


def misfit_sentence(least: Considered, changes: Sequence[Change], machines: Machines, wishes: Wishes) -> str:
    """``needs X, has Y: change Z``."""
    told = does_not_fit(least, machines, wishes)
    if not changes:
        return f"{told}; no change of length, method, optimizer or number of devices makes it fit: take a smaller model"
    words = [f"{change.words} (needs {gib(change.needs_bytes)})" for change in changes]
    return f"{told}; change {'one of these' if len(words) > 1 else 'this'}: {', '.join(words)}"


def _tried(trial: _Trial, estimate: Estimate) -> Change | None:
    least = leanest(trial.job, estimate)
    return Change(trial.words, least.memory.device_bytes, least) if least.fits else None


def _wish_trials(job: Job) -> Iterator[_Trial]:
    """What the user has decided, opened again."""
    wishes = job.wishes
    if (wishes.micro_batch or 1) > 1:
        yield _Trial("per_device_train_batch_size: 1", replace(job, wishes=replace(wishes, micro_batch=1)))
    if wishes.checkpointing and wishes.checkpointing != "host":
        yield _Trial("activation_checkpointing left open", replace(job, wishes=replace(wishes, checkpointing=None)))
    if wishes.strategy:
        yield _Trial("strategy: auto", replace(job, wishes=replace(wishes, strategy=None)))
    if not wishes.offload and job.machines.host_link > 0:
        yield _Trial("offload to the host", replace(job, wishes=replace(wishes, offload=True)))


def _length_trials(job: Job, estimate: Estimate) -> Iterator[_Trial]:
    """The longest shorter max_length that fits, in steps of 64."""

    def at(tokens: int) -> Job:
        return replace(job, settings=replace(job.settings, tokens=tokens))

    best = _largest(
        _SHORTEST // 64, (job.settings.tokens - 1) // 64, lambda count: leanest(at(count * 64), estimate).fits
    )
    if best is not None:
        yield _Trial(f"max_length: {best * 64}", at(best * 64))


def _largest(low: int, high: int, works: Callable[[int], bool]) -> int | None:
    """The largest number from `low` to `high` that works, where every smaller one does too."""
    if low > high or not works(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if works(middle) else (low, middle - 1)
    return low


def _optimizer_trials(job: Job) -> Iterator[_Trial]:
    if plain_adam(job.settings.optimizer):
        for name in ("adamw_8bit", "paged_adamw_8bit"):
            yield _Trial(f"optim: {name}", replace(job, settings=replace(job.settings, optimizer=name)))


def _method_trials(job: Job) -> Iterator[_Trial]:
    if job.settings.method in _WHOLE:
        job = replace(job, geometry=with_lora(job.geometry), settings=lora_settings(job.settings))
        yield _Trial("method: lora", job)
    if job.settings.method == "qlora" and job.machines.ranks > 1:  # a 16-bit base can be shared among ranks
        yield _Trial("method: lora", replace(job, settings=lora_settings(job.settings)))
    if job.settings.method in ("lora", "dora"):
        yield _Trial("method: qlora", replace(job, settings=qlora_settings(job.settings)))


def _device_trials(job: Job, estimate: Estimate) -> Iterator[_Trial]:
    """The fewest devices of the kind, doubled: first in the node (up to 8), then more nodes."""
    machines = job.machines
    if not machines.host_link:  # ranks on a CPU share its memory, however many there are
        return
    while machines.ranks * 2 <= _MOST_DEVICES:
        if machines.nodes == 1 and machines.per_node * 2 <= 8:
            machines = replace(machines, per_node=machines.per_node * 2)
        else:
            machines = replace(machines, nodes=machines.nodes * 2)
        more = replace(job, machines=machines, wishes=replace(job.wishes, strategy=None))
        if leanest(more, estimate).fits:
            nodes = f" in {machines.nodes} nodes" if machines.nodes > 1 else ""
            yield _Trial(f"{machines.ranks} devices{nodes} instead of {job.machines.ranks}", more)
            return
