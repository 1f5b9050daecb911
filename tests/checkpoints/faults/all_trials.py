"""All trials in one seeded sequence, or a part of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from faults.at_rest import try_at_rest
from faults.catalogue import Fault, faults_of
from faults.children import call
from faults.killing import label_of, try_kills
from faults.running import trials, try_running
from faults.sound import GOOD, try_sound
from faults.tally import Outcome
from faults.tiny_kinds import FULL, KINDS, LORA, LORA_TWO_RANKS, SHARDED, TWO_RANKS, Place, unbroken

Item = TypeVar("Item")
# Of all kills: two ranks need two processes a trial, so they get the smaller half.
KILL_SHARES = {FULL: 0.4, LORA: 0.3, TWO_RANKS: 0.2, LORA_TWO_RANKS: 0.1}
RANDOM_TRIALS = 10


def outcomes(
    seed: int, kills: int, part: float, steps: int, work: Path, wanted: Callable[[str], bool]
) -> Iterator[Outcome]:
    """Do the trials under `work`, one after the other.

    Args:
        kills: how many SIGKILLs in all.
        part: the share of all other trials to do, 1 for all.
        steps: how long the runs are that are killed.
        wanted: whether a kind of fault, by its name in the table, is to be tried.
    """
    chance = random.Random(seed)
    yield from _kills(kills, steps, work, chance, wanted)
    yield from _at_rest(part, work, chance, wanted)
    chosen = [trial for trial in trials(RANDOM_TRIALS) if wanted(trial.kind)]
    for number, trial in enumerate(_some(chosen, part, chance)):
        yield try_running(trial, number, work, chance)
    for kind in _some(list(KINDS), part, chance) if wanted(GOOD) else ():
        yield from try_sound(kind, work)


def _kills(
    kills: int, steps: int, work: Path, chance: random.Random, wanted: Callable[[str], bool]
) -> Iterator[Outcome]:
    for kind, share in KILL_SHARES.items():
        if wanted(label_of(kind)) and (count := round(share * kills)):
            yield from try_kills(kind, count, steps, work, chance)


def _at_rest(part: float, work: Path, chance: random.Random, wanted: Callable[[str], bool]) -> list[Outcome]:
    found: list[Outcome] = []
    for kind in (FULL, LORA, SHARDED, TWO_RANKS):
        pristine = unbroken(kind, work, 3)
        faults = [fault for fault in faults_of(pristine.output / "checkpoint-3", chance) if wanted(fault.kind)]
        found += call(partial(_try_all, _some(faults, part, chance), pristine, work / "at-rest", kind.name))
    order = list(dict.fromkeys(outcome.kind for outcome in found))
    return sorted(found, key=lambda outcome: order.index(outcome.kind))


def _try_all(faults: list[Fault], pristine: Place, work: Path, label: str) -> list[Outcome]:
    return [try_at_rest(fault, pristine.output, work, label) for fault in faults]


def _some(items: list[Item], part: float, chance: random.Random) -> list[Item]:
    """A share of `items`, in their order."""
    chosen = chance.sample(range(len(items)), math.ceil(part * len(items)))
    return [items[index] for index in sorted(chosen)]
