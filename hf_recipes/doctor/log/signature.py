"""What a known message is: how it is recognised, what it means, what to do. Plain data, kept in `signatures/`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["cause", "symptom", "summary", "notice"]

# Of several in a log, one of an earlier kind is more likely the root.
ORDER: tuple[Kind, ...] = ("cause", "symptom", "summary", "notice")


@dataclass(frozen=True)
class Signature:
    """A message that is known.

    Attributes:
        needle: text that stands in every line it is recognised by (or one of several); looked for first, since that is
            fast.
        cause: what it means, a sentence. ``<name>`` is replaced by that group of `pattern`.
        cure: what to do, in recipe keys where there are any, the first that fits first.
        example: a line of it as it is really printed, shortened by …
        seen: where: provoked with an installed package, or a public report.
        pattern: regular expression that the line must match too; empty: the needle is enough.
        kind: cause (it names the fault), symptom (something else may lie behind it: a lost peer, a time-out, a kill),
            summary (a launcher's account of what others said), notice (no fault, or none that stops a run).
        phase_cures: cures by phase of training where the traceback tells it; `cure` elsewhere.
    """

    needle: str | tuple[str, ...]
    cause: str
    cure: str
    example: str
    seen: str
    pattern: str = ""
    kind: Kind = "cause"
    phase_cures: Mapping[str, str] = field(default_factory=dict)

    @property
    def needles(self) -> tuple[str, ...]:
        """All of them."""
        return (self.needle,) if isinstance(self.needle, str) else self.needle

    def match(self, line: str) -> dict[str, str] | None:
        """The named groups of a line that it is recognised by; None for any other."""
        if not any(needle in line for needle in self.needles):
            return None
        if not self.pattern:
            return {}
        found = re.search(self.pattern, line)
        return None if found is None else {name: text for name, text in found.groupdict().items() if text}


def fill(sentence: str, groups: Mapping[str, str]) -> str:
    """The sentence with each ``<name>`` replaced; one without a value becomes "?"."""
    return re.sub(r"<([a-z_]+)>", lambda match: groups.get(match.group(1), "?"), sentence)
