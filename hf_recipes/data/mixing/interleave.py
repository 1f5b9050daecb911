"""Which source gives the next sample of a stream, so that every beginning of it has the share asked for. Pure.

Let D and G be the domain's and the general part's size so far, d and g the sizes of their next samples, s the share.
The next sample is the one whose middle comes first on its part's scale, (D + d/2) / (1 - s) against (G + g/2) / s
(Sainte-Laguë's method for two parties, by size). Then ``|G - s (D + G)| <= ((1 - s) g + s d) / 2`` after every sample,
g and d being the largest samples so far, those that wait included: half a sample at most, and half a row when rows are
counted. (By induction: the part that is behind by more than this goes first, and one sample moves the difference by
s d or (1 - s) g.) Among the sources of one
part the same rule holds with their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Schedule:
    """The state of a stream's mixture.

    Args:
        share: general part of the whole, from 0 to below 1.
        general: of each source, whether it belongs to the general part.
        weights: of each source, its weight among the sources of its part.
    """

    share: float
    general: Sequence[bool]
    weights: Sequence[float]
    used: list[float] = field(default_factory=list)  # of each source, since the start of its lap
    sizes: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of the domain and of the general part

    def __post_init__(self) -> None:
        self.used = self.used or [0.0] * len(self.general)

    def pick(self, heads: Sequence[float | None]) -> int | None:
        """The source whose next sample comes next; None when the stream ends.

        It ends when the domain is used up and a further general sample would not bring the general part nearer to its
        size. Where the general part is used up, the rest of the domain follows alone.

        Args:
            heads: size of each source's next sample; None for a source that is used up.
        """
        domain, general = self._first(heads, of_general=False), self._first(heads, of_general=True)
        domain_size, general_size = self.sizes
        if general is None:
            return domain
        general_middle = general_size + (heads[general] or 0) / 2
        if domain is None:
            return general if general_middle < self.wanted else None
        domain_middle = domain_size + (heads[domain] or 0) / 2
        return domain if domain_middle * self.share <= general_middle * (1 - self.share) else general

    def take(self, source: int, size: float) -> None:
        """Count a sample as given."""
        self.used[source] += size
        self.sizes[self.general[source]] += size

    def start_lap(self) -> None:
        """The general sources begin anew."""
        self.used[:] = [0.0 if general else used for used, general in zip(self.used, self.general, strict=True)]

    @property
    def wanted(self) -> float:
        """The size of the general part that the domain's size so far calls for."""
        return self.sizes[0] * self.share / (1 - self.share)

    @property
    def reached(self) -> float:
        """The general part of what was given so far."""
        return self.sizes[1] / sum(self.sizes) if any(self.sizes) else 0.0

    def _first(self, heads: Sequence[float | None], of_general: bool) -> int | None:
        there = [
            ((self.used[source] + head / 2) / self.weights[source], source)
            for source, head in enumerate(heads)
            if head is not None and self.general[source] == of_general
        ]
        return min(there)[1] if there else None
