"""The pure rules on silence: ranks whose heartbeats have stopped, though no process of this machine is seen to be gone.

A rank that waits in a collective still beats, from a thread of its own. One that does not is stopped, or its machine is
down or cut off; the ranks that wait for it stand at the same place as it does, and only the beating tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hf_recipes.callbacks.beat import Beat
from hf_recipes.callbacks.rank_agreement import rank_names

# A rank that does nothing else beats at least so often.
ALIVE_SECONDS = 2.0
# When a collective has failed on this rank, one that has not beaten for so long is taken to be what it lost.
LOST_SECONDS = 2.5 * ALIVE_SECONDS


class Silence:
    """When each rank was last heard of, on the clock of the process that judges."""

    def __init__(self) -> None:
        self._heard: dict[int, tuple[Any, float]] = {}

    def see(self, beats: Mapping[int, Beat], now: float) -> None:
        """Beats that have just been read."""
        for rank, beat in beats.items():
            sign = (beat.alive, beat.progress, beat.word)
            if rank not in self._heard or self._heard[rank][0] != sign:
                self._heard[rank] = (sign, now)

    def seconds(self, beat: Beat, now: float) -> float:
        """Since a rank was heard of; zero for one that does not say that it is alive."""
        return 0.0 if beat.alive is None or beat.rank not in self._heard else now - self._heard[beat.rank][1]

    def silent(self, beats: Iterable[Beat], now: float, limit: Callable[[Beat], float]) -> list[Beat]:
        """Ranks without a last word that have not been heard of for longer than their limit."""
        return [beat for beat in beats if not beat.word and self.seconds(beat, now) > limit(beat)]


def silent_sentence(silent: Sequence[Beat], others: Sequence[Beat], seconds: float, timeout_seconds: float) -> str:
    """One sentence about the silent ranks of one machine.

    Args:
        silent: their last beats.
        others: of ranks that still beat.
        seconds: for which nothing has been heard.
        timeout_seconds: of the collectives.
    """
    names = rank_names([beat.rank for beat in silent])
    machine = silent[0].machine
    processes = ", ".join(str(beat.pid) for beat in silent)
    front = max(others, key=lambda beat: beat.position, default=None)
    waits = f", while rank {front.rank} ({front.machine}) is at {front.told}" if front else ""
    return (
        f"{names[0].upper()}{names[1:]} on {machine} {'has' if len(silent) == 1 else 'have'} sent no heartbeat for "
        f"{seconds:.0f} s, last seen at {silent[0].told}{waits}: stopped, or {machine} is down or cut off from the "
        f"network; the other ranks wait until the collective time-out of {timeout_seconds:g} s. What to do: see "
        f"whether {machine} answers and what state process {processes} is in there (ps: T is stopped, D waits for a "
        "disk); then resume from the last good checkpoint (--resume_from_checkpoint last)."
    )


def cut_off_sentence(beats: Iterable[Beat], own: Beat, seconds: float) -> str:
    """One sentence where the store that heartbeats go through, on the first machine, does not answer any more."""
    first = next((beat for beat in beats if beat.rank == 0), None)
    there = f"the machine of rank 0 ({first.machine}, last seen at {first.told})" if first else "the machine of rank 0"
    return (
        f"Rank {own.rank} on {own.machine}, at {own.told}, has heard nothing from {there} for {seconds:.0f} s: that "
        "machine is down, or cut off from this one. What to do: see whether it answers; then resume from the last good "
        "checkpoint (--resume_from_checkpoint last)."
    )


def places_sentence(beats: Mapping[int, Beat], timeout_seconds: float) -> str:
    """One sentence on where every rank was last seen, when a collective timed out and none is known to be gone.

    Args:
        beats: the newest of every rank.
        timeout_seconds: of the collectives.
    """
    places: dict[str, list[Beat]] = {}
    for rank in sorted(beats):
        places.setdefault(beats[rank].told, []).append(beats[rank])
    told = "; ".join(
        f"{rank_names([beat.rank for beat in there])} ({', '.join(dict.fromkeys(beat.machine for beat in there))}) at "
        f"{place}"
        for place, there in places.items()
    )
    return (
        f"A collective was not joined by all ranks within {timeout_seconds:g} s; last seen: {told}. What to do: the "
        "others waited for the one furthest behind; where all are at the same place, the network or a "
        "device stands (`hf-recipes doctor --network`); raise ddp_timeout only for work that may last so long."
    )
