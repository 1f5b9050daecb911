"""What a doctor says of one thing: how it stands, in a sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        level: ok, note (worth knowing), warning (a run will be worse for it), error (a run will fail).
        topic: what was looked at, a word or two.
        sentence: what was found.
        cure: what to do; empty where there is nothing.
    """

    level: Level
    topic: str
    sentence: str
    cure: str = ""

    def as_values(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def render_findings(findings: Iterable[Finding]) -> str:
    """One line each, its cure below it."""
    shown = list(findings)
    level, topic = (max((len(getattr(one, name)) for one in shown), default=0) for name in ("level", "topic"))
    lines = []
    for one in shown:
        lines.append(f"{one.level.ljust(level)}  {one.topic.ljust(topic)}  {one.sentence}")
        if one.cure:
            lines.append(f"{' ' * (level + topic + 4)}→ {one.cure}")
    return "\n".join(lines)


def exit_code(findings: Iterable[Finding]) -> int:
    """1 when one of them is an error, else 0."""
    return int(any(one.level == "error" for one in findings))
