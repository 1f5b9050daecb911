"""Which of the links between ranks is far slower than the others of its kind: numbers in, sentences out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A link this many times slower than the best of its kind is told. Ranks that share a switch or a socket with others
# differ by two; a cable that negotiated a tenth of its speed, or a route over the wrong interface, by ten.
FAR_SLOWER = 3.0


@dataclass(frozen=True)
class Link:
    """What one rank sends to another, measured alone, in one direction.

    Attributes:
        source, target: ranks.
        source_host, target_host: their machines.
        bytes_per_second: of a large message.
        latency_seconds: half of what a small message takes there and back.
    """

    source: int
    target: int
    source_host: str
    target_host: str
    bytes_per_second: float
    latency_seconds: float

    @property
    def across(self) -> bool:
        """Whether it leaves the machine."""
        return self.source_host != self.target_host

    @property
    def told(self) -> str:
        """For a sentence."""
        return f"rank {self.source} ({self.source_host}) to rank {self.target} ({self.target_host})"


def slow_links(links: Iterable[Link]) -> list[Link]:
    """Links far slower than the best of their kind (inside a machine, across machines), slowest first."""
    known = list(links)
    best = {
        across: max((link.bytes_per_second for link in known if link.across == across), default=0.0)
        for across in (False, True)
    }
    found = [link for link in known if link.bytes_per_second * FAR_SLOWER < best[link.across]]
    return sorted(found, key=lambda link: link.bytes_per_second)


def slow_sentences(links: Sequence[Link]) -> list[str]:
    """One sentence for each host all of whose links are slow, and for each slow link besides."""
    slow = slow_links(links)
    best = {link.across: max(each.bytes_per_second for each in links if each.across == link.across) for link in slow}
    hosts = _slow_hosts(links, slow)
    sentences = [
        f"Every link from or to {host} is slow: {_rate(worst)} at worst, against {_rate_of(best[True])} between other "
        "machines; look at its cable, its switch port and the interface it uses (NCCL_SOCKET_IFNAME, "
        "GLOO_SOCKET_IFNAME)."
        for host, worst in hosts.items()
    ]
    for link in slow:
        if link.source_host in hosts or link.target_host in hosts:
            continue
        kind = "between machines" if link.across else "inside a machine"
        sentences.append(
            f"The link from {link.told} is slow: {_rate(link)}, against {_rate_of(best[link.across])} of the best "
            f"{kind}; look at what lies between the two."
        )
    return sentences


def _slow_hosts(links: Sequence[Link], slow: Sequence[Link]) -> dict[str, Link]:
    """Hosts of which every link to another machine is slow in at least one direction, with the worst of them; nothing
    where that is so of all hosts."""
    across = [link for link in links if link.across]
    hosts = sorted({link.source_host for link in across})
    pairs = {host: {_pair(link) for link in across if host in _hosts(link)} for host in hosts}
    slow_pairs = {_pair(link) for link in slow if link.across}
    found = [host for host in hosts if pairs[host] and pairs[host] <= slow_pairs]
    if len(found) in (0, len(hosts)):
        return {}
    return {host: next(link for link in slow if host in _hosts(link)) for host in found}


def _hosts(link: Link) -> tuple[str, str]:
    return link.source_host, link.target_host


def _pair(link: Link) -> frozenset[int]:
    return frozenset((link.source, link.target))


def _rate(link: Link) -> str:
    return _rate_of(link.bytes_per_second)


def _rate_of(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8 / 1e9:.3g} Gbit/s"


def pairs_to_measure(hosts: Sequence[str], most: int = 64) -> list[tuple[int, int]]:
    """Pairs of ranks, lower first, whose links are worth measuring one at a time: all where they are at most `most`,
    else the ring's neighbours and the first ranks of all machines.

    Args:
        hosts: the machine of each rank.
        most: pairs; measuring one takes a fraction of a second.
    """
    ranks = range(len(hosts))
    every = [(low, high) for low in ranks for high in ranks if low < high]
    if len(every) <= most:
        return every
    first = [rank for rank in ranks if hosts.index(hosts[rank]) == rank]
    ring = {(rank, rank + 1) for rank in ranks[:-1]}
    between = {(low, high) for low in first for high in first if low < high}
    return sorted(ring | (between if len(between) <= most else set()))
