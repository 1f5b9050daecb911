"""What a verification finds: problems, which make it fail, and notes, which do not."""

from __future__ import annotations

from dataclasses import dataclass, field

# How deep to look: headers and indices; every byte; loaded once more.
LEVELS = ("structure", "content", "reload")


@dataclass(frozen=True)
class Problem:
    """One fault: the file (relative to the directory, ``/`` between), the tensor where there is one, and what is
    wrong."""

    file: str
    what: str
    tensor: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}: tensor '{self.tensor}'" if self.tensor else self.file
        return f"{place}: {self.what}"


@dataclass
class Findings:
    """Collects problems and notes, in the order they are found."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, file: str, what: str, tensor: str | None = None) -> None:
        """Add a fault."""
        self.problems.append(Problem(file, what, tensor))

    def note(self, text: str) -> None:
        """Add something worth knowing that is no fault."""
        self.notes.append(text)


def some(names: list[str], limit: int = 3) -> str:
    """Name the first of `names` and count the rest: ``'a', 'b', 'c' and 4 more``."""
    shown = ", ".join(f"'{name}'" for name in names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
