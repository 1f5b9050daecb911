"""What an inspection found, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hf_recipes.data.inspection.batches import BatchView
from hf_recipes.data.inspection.histogram import Histogram
from hf_recipes.data.inspection.loader import LoaderSettings
from hf_recipes.data.inspection.round_trip import RoundTrip


@dataclass(frozen=True)
class TokenShare:
    """A token with how many answers begin, or end, with it."""

    token_id: int
    text: str
    count: int
    share: float


@dataclass(frozen=True)
class FrequentAnswer:
    """An answer, shortened, how many conversations learn it and nothing else, and the first row that does."""

    text: str
    count: int
    row_id: str = ""


@dataclass(frozen=True)
class TokenFacts:
    """What the tokens of the scanned training rows look like.

    `rows` of `of_rows` were scanned; `ends` maps a source to (conversations, those that learn the end-of-turn token);
    `answers` are learned stretches of conversations; `doubled_bos` names rows that begin with two BOS tokens;
    `placeholders` are answers such as ``N/A``; `preamble` is what the chat template says by itself before a
    conversation, where some shown sample has it.
    """

    rows: int
    of_rows: int
    lengths: Histogram
    learned: Histogram
    conversations: int
    answers: int
    first_tokens: list[TokenShare]
    last_tokens: list[TokenShare]
    ends: dict[str, tuple[int, int]]
    doubled_bos: list[str]
    heaviest_answer: FrequentAnswer | None
    placeholders: list[FrequentAnswer] = field(default_factory=list)
    preamble: str = ""


@dataclass(frozen=True)
class Inspection:
    """All that `hf-recipes inspect` shows.

    `report` is the preparation's own account (``data.json``). `batches` are the first of the run's, as many as there
    are up to `batches_asked`; `packed` says whether their rows hold several samples. `padding_share` is that of a
    whole epoch, between 0 and 1.
    """

    recipe: str
    model: str
    loader: LoaderSettings
    report: Mapping[str, Any]
    batches_asked: int
    batches: list[BatchView]
    padding_share: float
    packed: bool
    tokens: TokenFacts
    round_trips: list[RoundTrip]
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def stops(self) -> bool:
        """Whether something is wrong enough that training should not start."""
        return any(verdict.severity == "stop" for verdict in self.verdicts)

    @property
    def max_length(self) -> int | None:
        """The recipe's limit in tokens."""
        limit: int | None = self.report.get("settings", {}).get("max_length")
        return limit

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON."""
        return {**asdict(self), "stops": self.stops}


Severity = Literal["stop", "warn", "note"]


@dataclass(frozen=True)
class Verdict:
    """A finding; `sentence` says what was found and what to do."""

    severity: Severity
    sentence: str
