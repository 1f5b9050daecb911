"""All that is known of a run, before it is judged: settings, curves, alarms, data, how it ended. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.doctor.run.replay import Replay
from hf_recipes.doctor.run.settings import Settings


@dataclass(frozen=True)
class AlarmSeen:
    """An alarm that rang while training: who rang it, with which verdict, at which step, in which words."""

    detector: str
    verdict: str
    step: int
    message: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A run to be judged.

    Attributes:
        name: how its user knows it.
        replay: its curves, shown to the detectors.
        alarms: that rang while training and stand.
        preflight: what the overfit test before the run named, if it failed: `what` and `cure` of each.
        data: data.json; empty where there is none.
        code, ended: exit code and sentence of status.json; None and empty where it has not ended.
        silent: a sentence when it neither ended nor shows a sign of life.
        unverified: checkpoints that carry no mark of verification, though others do.
        data_wait: share of the time that steps waited for data, in the median.
        missed: conditions of the evaluation's gate that do not hold, a sentence each.
        problems: files that could not be read.
    """

    name: str
    replay: Replay
    settings: Settings = field(default_factory=Settings)
    alarms: tuple[AlarmSeen, ...] = ()
    preflight: tuple[Mapping[str, Any], ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    code: int | None = None
    ended: str = ""
    silent: str = ""
    unverified: tuple[str, ...] = ()
    data_wait: float | None = None
    missed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def rang(self, detector: str, *verdicts: str) -> list[AlarmSeen]:
        """The alarms of a detector, of some verdicts or all."""
        return [one for one in self.alarms if one.detector == detector and (not verdicts or one.verdict in verdicts)]
