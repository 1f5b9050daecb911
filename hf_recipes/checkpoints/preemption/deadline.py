"""When a run has to stop so that its save is done before a given moment. Numbers in, verdict out."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping

from hf_recipes.core.errors import UserError

_WINDOW = 50
_SAVE_FACTOR = 1.5
_LEAST_SECONDS = 10.0  # for what no save has measured yet, and for the end of the processes

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WITH_UNITS = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_OF_SLURM = re.compile(r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<m>\d+))?(?::(?P<s>\d+))?)|(?:(\d+):)?(\d+):(\d+)")


def seconds_of(text: str | float) -> float:
    """The seconds of ``5400``, ``90m``, ``1h30m``, or as Slurm writes it ``1:30:00`` (h:m:s), ``90:00`` (m:s),
    ``2-12``, ``2-12:00``, ``2-12:00:00`` (days-hours…).

    Raises:
        UserError: it is none of these, or not above zero.
    """
    seconds = _seconds(str(text).strip().lower())
    if not seconds or not 0 < seconds < float("inf"):
        raise UserError(f"time_limit: '{text}' is no length of time: write 39600 (seconds), 11h, 1h30m or 2-12:00:00.")
    return seconds


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    if text and (match := _WITH_UNITS.fullmatch(text.replace(" ", ""))):
        return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS.values(), strict=True) if part)
    if match := _OF_SLURM.fullmatch(text):
        if match["days"]:
            parts = [int(match[name] or 0) for name in ("days", "h", "m", "s")]
        else:
            parts = [0, *(int(part or 0) for part in match.groups()[4:])]
        return float(sum(part * unit for part, unit in zip(parts, _UNITS.values(), strict=True)))
    return None


def slurm_end(environment: Mapping[str, str], now: float) -> float | None:
    """Unix seconds at which Slurm ends this job, by SLURM_JOB_END_TIME. None: not in a job, or one whose time is over
    by that figure (it was extended since)."""
    try:
        end = float(environment.get("SLURM_JOB_END_TIME", ""))
    except ValueError:
        return None
    return end if now < end < float("inf") else None


class DeadlineWatch:
    """Tells at the end of a step whether there is time for another one and a save after it.

    All times are seconds of one clock. Counted are the longest of the last steps, evaluation where one is due, and one
    and a half times the longest save, ten seconds at least.

    Args:
        deadline: when everything has to be over.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._steps: deque[float] = deque(maxlen=_WINDOW)
        self._longest: dict[str, float] = {}
        self._since_step: dict[str, float] = {}
        self._mark: float | None = None

    def mark(self, now: float) -> None:
        """What comes next begins now."""
        self._mark = now

    def step_ended(self, now: float) -> None:
        """A step is done, that began at the last mark."""
        if self._mark is not None:
            self._steps.append(now - self._mark)
        self._since_step.clear()
        self._mark = now

    def ended(self, what: str, now: float) -> None:
        """A "save" or an "evaluation", or one part of it, is done, that began at the last mark."""
        if self._mark is not None:
            self._since_step[what] = self._since_step.get(what, 0.0) + now - self._mark
            self._longest[what] = max(self._longest.get(what, 0.0), self._since_step[what])
        self._mark = now

    def needed_seconds(self, evaluates: bool = False) -> float:
        """What one more step (with an evaluation) and the save after it take."""
        save = max(_LEAST_SECONDS, _SAVE_FACTOR * self._longest.get("save", 0.0))
        return max(self._steps, default=0.0) + (self._longest.get("evaluation", 0.0) if evaluates else 0.0) + save

    def must_stop(self, now: float, evaluates: bool = False) -> bool:
        """Whether one more step would end too late."""
        return now + self.needed_seconds(evaluates) > self.deadline
