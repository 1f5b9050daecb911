"""Who has come: before ranks join a process group, each says that it is there, and who is absent is named.

Without it a rank that waits for a machine that never starts waits in silence until the collectives' time-out (half an
hour), and then ends with a traceback. Torch's own launchers call the roll themselves, in their own words.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.log import logger

# How long a job's ranks and machines wait for each other: the Trainer's default of ddp_timeout, and a scheduler may
# start one long after the other.
JOB_PATIENCE_SECONDS = 1800.0
_PREFIX = "hf_recipes/here"
_LOOK_SECONDS = 0.5
_TELL_SECONDS = 30.0
_LEAVE_SECONDS = 10.0
_kept: list[Any] = []  # rank 0's store serves torch's process group too, which finds it by its port


class Absent(UserError):
    """Not all ranks have come. Every machine says so for itself: there is no group yet to agree in."""


@dataclass(frozen=True)
class Place:
    """Where this rank stands, as its launcher says.

    Attributes:
        local_ranks: ranks of each machine; all where the launcher does not say.
        address, port: of rank 0.
    """

    rank: int
    ranks: int
    local_ranks: int
    address: str
    port: int

    @property
    def speaks(self) -> bool:
        """Whether this is the first rank of its machine."""
        return self.rank % self.local_ranks == 0

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Place | None:
        """From RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; None where there is no launcher."""
        try:
            rank, ranks, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
            local = int(environment.get("LOCAL_WORLD_SIZE", ranks))
            return cls(rank, ranks, max(1, local), environment["MASTER_ADDR"], port)
        except (KeyError, ValueError):
            return None


def roll_call(place: Place, patience_seconds: float) -> None:
    """Wait for all ranks, and say twice a minute for whom.

    Raises:
        Absent: some have not come in time; it names them, and what to check. On all ranks that are there.
    """
    store = _store(place, patience_seconds)
    _kept.append(store)
    _wait_for_all(store, place, [place.rank], patience_seconds)


def machine_roll_call(place: Place, patience_seconds: float) -> None:
    """The same before ranks are started, by one process of each machine for all ranks it will have; the port is free
    again for the launcher afterwards.

    Args:
        place: of the first rank of this machine.
        patience_seconds: how long to wait.

    Raises:
        Absent: as `roll_call`.
    """
    store = _store(place, patience_seconds)
    _wait_for_all(store, place, range(place.rank, place.rank + place.local_ranks), patience_seconds)
    left = store.add(f"{_PREFIX}/left", 1)
    give_up = time.monotonic() + _LEAVE_SECONDS
    while place.rank == 0 and left < place.ranks // place.local_ranks and time.monotonic() < give_up:
        time.sleep(_LOOK_SECONDS / 10)  # the store ends with this process's hold on it, and others still ask it
        left = store.add(f"{_PREFIX}/left", 0)


def _wait_for_all(store: Any, place: Place, mine: Iterable[int], patience_seconds: float) -> None:
    for rank in mine:
        store.set(f"{_PREFIX}/{rank}", socket.gethostname())
    began = told = time.monotonic()
    while absent := [rank for rank in range(place.ranks) if not store.check([f"{_PREFIX}/{rank}"])]:
        now = time.monotonic()
        if now - began > patience_seconds:
            raise Absent(absent_sentence(absent, _hosts(store, place, absent), place, now - began))
        if now - told > _TELL_SECONDS:
            told = now
            logger.warning("Still waiting for %s.", _ranks(absent, place))
        time.sleep(_LOOK_SECONDS)


def absent_sentence(absent: Sequence[int], hosts: Sequence[str], place: Place, waited_seconds: float) -> str:
    """One sentence on who has not come.

    Args:
        absent: ranks.
        hosts: machines that have come.
        place: of the rank that speaks.
        waited_seconds: by it.
    """
    return (
        f"{_ranks(absent, place)} did not come within {waited_seconds:.0f} s, while {', '.join(hosts) or 'nobody'} "
        f"waited at {place.address}:{place.port}: check there that the command runs, with its own --machine_rank and "
        f"the same number of processes and machines, that '{place.address}' is this machine as seen from there "
        f"(getent hosts {place.address}), and that no firewall closes port {place.port} and those above 1024."
    )


def unreachable_sentence(place: Place, waited_seconds: float) -> str:
    """One sentence where the first machine does not answer."""
    return (
        f"Nobody answers at {place.address}:{place.port} for {waited_seconds:.0f} s, where rank 0 should be: start the "
        f"command with --machine_rank 0 there, and check that '{place.address}' is its address as seen from "
        f"{socket.gethostname()} (getent hosts {place.address}) and that no firewall closes port {place.port}."
    )


def find_first(address: str, *, is_first: bool, patience_seconds: float) -> None:
    """Resolve the first machine's name before torch does, which asks again and again and fills the screen with it.

    Args:
        address: the name, or an address.
        is_first: whether this is the first machine, which must know itself; others may start before its name is known
            (clusters whose name service learns of a machine as it starts), and ask for as long as they wait.
        patience_seconds: how long they wait.

    Raises:
        Absent: the name has no address here.
    """
    began = time.monotonic()
    while not _has_address(address):
        waited = time.monotonic() - began
        if is_first or waited >= patience_seconds:
            for_long = "" if is_first else f" for {waited:.0f} s"
            raise Absent(
                f"--main_process_ip: '{address}' has no address on {socket.gethostname()}{for_long} (getent hosts "
                f"{address}): give the first machine's name or address as all machines know it."
            )
        if waited < _LOOK_SECONDS:
            logger.warning("'%s' has no address here; asking for %.0f s.", address, patience_seconds)
        time.sleep(min(_LOOK_SECONDS, patience_seconds))


def _has_address(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, ValueError):  # unknown; or no name at all, which has no form to be asked in
        return False


def _store(place: Place, patience_seconds: float) -> Any:
    find_first(place.address, is_first=place.rank == 0, patience_seconds=patience_seconds)
    from torch.distributed import DistNetworkError, TCPStore

    serves = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            place.address,
            place.port,
            None,
            serves,
            timedelta(seconds=patience_seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except DistNetworkError as error:
        if serves:
            raise Absent(
                f"Port {place.port} of this machine cannot be used ({first_line(error)[:200]}): give another by "
                "--main_process_port, on all machines."
            ) from error
        raise Absent(unreachable_sentence(place, patience_seconds)) from error
    return store


def _hosts(store: Any, place: Place, absent: Sequence[int]) -> list[str]:
    there = [rank for rank in range(place.ranks) if rank not in absent]
    return list(dict.fromkeys(store.get(f"{_PREFIX}/{rank}").decode() for rank in there))


def _ranks(absent: Sequence[int], place: Place) -> str:
    """``Machine 1 (ranks 2 and 3)``, or the ranks alone where a machine has come in part."""
    machines = sorted({rank // place.local_ranks for rank in absent})
    whole = len(absent) == place.local_ranks * len(machines)
    names = f"{'ranks' if len(absent) > 1 else 'rank'} {_and(absent)}"
    if not whole:
        return names[0].upper() + names[1:]
    return f"Machine{'s' if len(machines) > 1 else ''} {_and(machines)} ({names})"


def _and(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
