"""Which of a log's messages is the root, and how it is told. Never a guess: what is not known is said to be so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from hf_recipes.doctor.log.scan import Hit, Scan, scan
from hf_recipes.doctor.log.signature import ORDER, fill
from hf_recipes.doctor.log.tracebacks import ErrorSeen
from hf_recipes.doctor.run.case import Case
from hf_recipes.doctor.run.diagnosis import Diagnosis, diagnose
from hf_recipes.doctor.run.settings import Settings

_OTHERS_TOLD = 6


@dataclass(frozen=True)
class LogDiagnosis:
    """What is known of a log.

    Attributes:
        lines: it has.
        root: the message that explains the end best; None where none is known.
        others: further known faults, one of each, in order; `notices` likewise.
        survived: faults that training went on after: they did not end it.
        unknown: the error that nothing known explains, where it comes before `root` or there is none.
        curves: what its numbers tell; None where it holds too few.
    """

    lines: int
    root: Hit | None
    others: tuple[Hit, ...]
    notices: tuple[Hit, ...]
    unknown: ErrorSeen | None
    curves: Diagnosis | None
    ranks: tuple[int, ...] = ()
    survived: tuple[Hit, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 when a known fault was found, in words or in the curves; 0 else, also for what is unknown."""
        return int(self.root is not None or (self.curves is not None and not self.curves.healthy))

    def as_values(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "schema": 1,
            "lines": self.lines,
            "root": _values(self.root) if self.root else None,
            "ranks": list(self.ranks),
            "others": [_values(hit) for hit in self.others],
            "notices": [_values(hit) for hit in self.notices],
            "survived": [_values(hit) for hit in self.survived],
            "unknown": vars(self.unknown) if self.unknown else None,
            "curves": self.curves.as_values() if self.curves else None,
        }


def diagnose_log(stream: BinaryIO) -> LogDiagnosis:
    """Name the fault that a log tells of.

    Args:
        stream: the log's bytes, of whatever tool; read once, in constant memory.
    """
    return conclude(scan(stream))


def conclude(seen: Scan) -> LogDiagnosis:
    """Choose the root among what was seen."""
    hits = sorted(seen.hits, key=lambda hit: hit.line)
    all_faults = [hit for hit in hits if hit.signature.kind != "notice"]
    faults = [hit for hit in all_faults if not seen.survived(hit)]
    survived = _one_of_each([hit for hit in all_faults if seen.survived(hit)])
    notices = _one_of_each([hit for hit in hits if hit.signature.kind == "notice"])
    root = choose_root(faults, seen.root_rank)
    unknown = _unknown(root, seen)
    if unknown is not None and root is not None and root.signature.kind == "summary":
        faults, root = [], None  # a launcher's account explains nothing
    others = [hit for hit in _one_of_each(faults) if root is None or hit.name != root.name]
    ranks = sorted({hit.rank for hit in seen.hits if root and hit.name == root.name and hit.rank is not None})
    return LogDiagnosis(
        seen.lines, root, tuple(others), tuple(notices), unknown, _curves(seen), tuple(ranks), tuple(survived)
    )


def choose_root(hits: Sequence[Hit], root_rank: int | None = None) -> Hit | None:
    """The message that explains the others.

    One that names a fault stands before one that may have another behind it (a lost peer, a time-out, a kill), and that
    before a launcher's account; of one kind the rank's that the launcher calls the first to fail, then the first.
    """
    if not hits:
        return None
    return min(
        hits,
        key=lambda hit: (
            ORDER.index(hit.signature.kind),
            root_rank is not None and hit.rank is not None and hit.rank != root_rank,
            hit.line,
        ),
    )


def _unknown(root: Hit | None, seen: Scan) -> ErrorSeen | None:
    """An error that is not known, where the root is not a fault by itself: the first before it, else the last."""
    errors = seen.tracebacks.unexplained
    if root is None:
        return seen.tracebacks.last
    if root.signature.kind == "cause" or not errors:
        return None
    named = [error for error in errors if seen.root_rank is not None and error.rank == seen.root_rank]
    first = (named or errors)[0]
    return first if root.signature.kind == "summary" or first.line < root.line else None


def _one_of_each(hits: Sequence[Hit]) -> list[Hit]:
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(hit.name, hit)
    return list(first.values())


def _curves(seen: Scan) -> Diagnosis | None:
    replay = seen.numbers.replay
    if not (replay.losses or replay.counts):
        return None
    settings = Settings(max_steps=seen.numbers.max_steps)
    return diagnose(Case("curves", replay, settings))


def _values(hit: Hit) -> dict[str, Any]:
    return {
        "name": hit.name,
        "line": hit.line,
        "rank": hit.rank,
        "text": hit.text,
        "kind": hit.signature.kind,
        "phase": hit.phase if hit.signature.phase_cures else None,
        "cause": cause_of(hit),
        "cure": cure_of(hit),
    }


def cause_of(hit: Hit) -> str:
    """The sentence of the cause, with the phase where it is told."""
    sentence = fill(hit.signature.cause, hit.groups).replace(" (? more were asked for)", "").replace(" (?)", "")
    return sentence if hit.phase == "elsewhere" else f"{sentence.rstrip('.')}, in the phase: {hit.phase}."


def cure_of(hit: Hit) -> str:
    """What to do, by phase where it is known."""
    return fill(hit.signature.phase_cures.get(hit.phase, hit.signature.cure), hit.groups)


def render(found: LogDiagnosis) -> str:
    """For a terminal."""
    lines = [f"{found.lines:,} lines read."]
    if found.unknown is not None:
        if found.root is None:
            lines.append(
                f"Nothing known in here; the last error is, at line {found.unknown.line}{_of(found.unknown.rank)}:"
            )
        else:
            lines.append(
                f"An error that is not known comes first, at line {found.unknown.line}{_of(found.unknown.rank)}:"
            )
        lines.append(f"   {found.unknown.text}")
    if found.root is not None:
        lines += _told(found.root, found.ranks)
    elif found.unknown is None:
        lines.append(
            "Nothing known in here that ended a run, and no traceback."
            if found.survived
            else "Nothing known in here, and no traceback."
        )
    for hit in found.others[:_OTHERS_TOLD]:
        lines.append(f"also, at line {hit.line}{_of(hit.rank)}: {cause_of(hit)}")
    for hit in found.survived[:_OTHERS_TOLD]:
        lines.append(f"not the end, at line {hit.line}, since training went on: {cause_of(hit)}")
    for hit in found.notices[:_OTHERS_TOLD]:
        lines.append(f"note, at line {hit.line}: {cause_of(hit)} {cure_of(hit)}.")
    if found.curves is not None:
        lines += _curves_told(found.curves)
    return "\n".join(lines)


def _told(root: Hit, ranks: Sequence[int]) -> list[str]:
    others = [rank for rank in ranks if rank != root.rank]
    also = f", also of rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others[:8]))}" if others else ""
    return [
        f"{root.name}, at line {root.line}{_of(root.rank)}{also}:",
        f"   {root.text}",
        f"   cause: {cause_of(root)}",
        f"   cure: {cure_of(root)}",
    ]


def _of(rank: int | None) -> str:
    return "" if rank is None else f" (rank {rank})"


def _curves_told(curves: Diagnosis) -> list[str]:
    lines = [f"curves: {curves.summary}"]
    for cause in curves.causes:
        lines.append(f"   {cause.sentence}: {'; '.join(cause.evidence)}")
        lines.append(f"   change: {cause.change}")
    return lines
