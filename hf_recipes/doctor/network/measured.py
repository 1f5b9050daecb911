"""What was measured, as plain data, and what a file of it must hold: each value is looked at once, here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.doctor.network.curve import COLLECTIVES, Timing
from hf_recipes.doctor.network.links import Link

# No network is beyond these; a file that says so was not measured.
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1e-9, 1e6
_MOST_BYTES = 1 << 40
_FASTEST = 1e15  # bytes a second


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        backend: ``nccl`` or ``gloo``.
        hosts: the machine of each rank.
        timings: of the collectives over all ranks.
        links: of pairs of ranks, both directions.
    """

    backend: str
    hosts: tuple[str, ...]
    timings: tuple[Timing, ...]
    links: tuple[Link, ...]


def read_measured(values: Any, where: str) -> Measured:
    """Take back what `hf_recipes.doctor.network.report.as_values` made; what follows from the rest (bandwidths, slow
    links) is not read.

    Args:
        values: of a file, anything.
        where: its name, for the error.

    Raises:
        UserError: they are not such values; it names the first that is none.
    """
    try:
        return _measured(values)
    except _Wrong as error:
        raise UserError(
            f"'{where}' is no measurement of `hf-recipes doctor --network --output FILE` ({error}): measure again."
        ) from error


class _Wrong(Exception):
    """A value that no measurement has."""


def _measured(values: Any) -> Measured:
    if not isinstance(values, Mapping):
        raise _Wrong("it holds no table")
    hosts = tuple(_text(host, "hosts") for host in _list(values, "hosts"))
    if len(hosts) < 2:
        raise _Wrong(f"hosts: {len(hosts)} of them have no network")
    timings = tuple(_timing(row, len(hosts)) for row in _list(values, "collectives"))
    found = [(timing.collective, timing.size_bytes) for timing in timings]
    if len({size for _, size in found}) < 2 or len(set(found)) < len(found):
        raise _Wrong("collectives: each is measured once at each of two sizes or more")
    links = tuple(_link(row, hosts) for row in _list(values, "links"))
    return Measured(_text(values.get("backend"), "backend"), hosts, timings, links)


def _timing(row: Any, ranks: int) -> Timing:
    if not isinstance(row, Mapping):
        raise _Wrong(f"collectives: {_shown(row)} is no row")
    name = next((known for known in COLLECTIVES if known == row.get("collective")), None)
    if name is None:
        raise _Wrong(f"collective: {_shown(row.get('collective'))} is none of {', '.join(COLLECTIVES)}")
    if _whole(row, "ranks", 2, 1 << 24) != ranks:
        raise _Wrong(f"ranks: {row['ranks']} of {name}, and {ranks} hosts")
    size = _whole(row, "size_bytes", 1, _MOST_BYTES)
    return Timing(name, size, _number(row, "seconds", _SHORTEST_SECONDS, _LONGEST_SECONDS), ranks)


def _link(row: Any, hosts: tuple[str, ...]) -> Link:
    if not isinstance(row, Mapping):
        raise _Wrong(f"links: {_shown(row)} is no row")
    source, target = (_whole(row, end, 0, len(hosts) - 1) for end in ("source", "target"))
    if source == target or (row.get("source_host"), row.get("target_host")) != (hosts[source], hosts[target]):
        raise _Wrong(f"links: {source} → {target} does not lie between two of the hosts")
    rate = _number(row, "bytes_per_second", 1e-6, _FASTEST)
    return Link(source, target, hosts[source], hosts[target], rate, _number(row, "latency_seconds", 0, 1e6))


def _list(values: Mapping[str, Any], name: str) -> list[Any]:
    found = values.get(name)
    if not isinstance(found, list) or not found:
        raise _Wrong(f"{name}: {_shown(found)} is no list of any")
    return found


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise _Wrong(f"{name}: {_shown(value)} is no name")
    return value


def _whole(row: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _Wrong(f"{name}: {_shown(value)} is no whole number from {least} to {most}")
    return value


def _number(row: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value = row.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise _Wrong(f"{name}: {_shown(value)} is no number from {least:g} to {most:g}")
    return float(value)


def _shown(value: Any) -> str:
    return "nothing" if value is None else ascii(value)[:40]
