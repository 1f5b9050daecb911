"""Where a rank is in its training: what it tells the others, again and again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

Word = Literal["", "ending", "ended", "terminated", "failed"]


# Phases of a step in their order in time. The first three lie between steps and belong to the next one.
EVALUATING, SAVING, WAITING, TRAINING = range(4)


@dataclass(frozen=True)
class Beat:
    """Where one rank is.

    `step` is the number that the step being worked on will have in the logs; `events` counts what happened in it;
    `long` marks a time that may last (evaluation, saving, the first step). `data_seconds` and `forward_seconds` are
    totals over the `steps` finished in this run. `where` is the line of code in which a rank stands that has not moved
    for a while, `fetching` whether that is in the data loader. `alive` grows as long as the rank's process runs,
    wherever its training stands (None: it does not say). `word` is a rank's last one: it takes no more steps (ending),
    is through (ended), was told to terminate, or failed of `error`.
    """

    rank: int
    host: str
    pid: int
    time: float = 0.0
    step: int = 1
    phase: int = WAITING
    events: int = 0
    place: str = "starting"
    long: bool = True
    steps: int = 0
    data_seconds: float = 0.0
    forward_seconds: float = 0.0
    fetching: bool = False
    where: str | None = None
    alive: int | None = None
    word: Word = ""
    error: str | None = None

    @property
    def progress(self) -> tuple[int, int, int]:
        """What grows as the rank goes on."""
        return self.step, self.phase, self.events

    @property
    def position(self) -> tuple[int, int, int, bool]:
        """The order of two ranks in time: at the same place, the one that still fetches data is behind."""
        return (*self.progress, not self.fetching)

    @property
    def machine(self) -> str:
        """The host's name."""
        return self.host.split(" ")[0]

    @property
    def told(self) -> str:
        """For a sentence."""
        where = f", in {self.where}" if self.where else ""
        return f"step {self.step}, {'waiting for data' if self.fetching else self.place}{where}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Beat:
        return cls(**json.loads(text))
