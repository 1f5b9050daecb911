"""The curves in a log: what trainers print of each step, as Python's dicts, as JSON or within a progress bar."""

from __future__ import annotations

import re

from hf_recipes.doctor.run.read_case import EVAL_LOSSES, MOST_STEPS, number, see_values
from hf_recipes.doctor.run.replay import Replay

# 'loss': 1.2 · "loss": "1.2" · 'loss': np.float64(1.2) · 'loss': nan
_PAIR = re.compile(
    r"""['"]([\w/.\- ]{1,60})['"]\s*:\s*(?:np\.float\d+\(|tensor\()?['"]?"""
    r"(-?(?:nan|NaN|[iI]nf(?:inity)?|\d[\d_]*\.?\d*(?:[eE][+-]?\d+)?|\.\d+))(?![\w.])"
)
# ms-swift: "global_step/max_steps": "10/100"
_OF = re.compile(r"['\"](?:global_)?step/max_steps['\"]\s*:\s*['\"](\d{1,15})/(\d{1,15})['\"]")
_BAR = re.compile(r"^\s*\d{1,3}%\|[^|]*\|\s*(\d{1,15})/(\d{1,15}) \[")
_STEPS = ("step", "global_step", "current_steps", "iteration")
_TRAINING = ("loss", "grad_norm")


class NumbersSeen:
    """Feeds what it reads to the detectors.

    Attributes:
        replay: the detectors, of the last run in the log.
        max_steps: as a progress bar or a log tells it.
        logs: of training that were seen, of all runs in the log.
        ends: of runs that came to their end, as the Trainer's summary (train_runtime) tells.
    """

    def __init__(self) -> None:
        self.replay = Replay(rounded=True)
        self.max_steps: int | None = None
        self.logs = 0
        self.ends = 0
        self._bar_step: int | None = None
        self._epoch = 0.0
        self._metric: str | None = None

    def see(self, text: str) -> None:
        """One line of rank 0, or of a log that names no ranks."""
        if bar := _BAR.match(text):
            self._bar_step, self.max_steps = int(bar[1]), int(bar[2])
        if "loss" not in text or "{" not in text:
            return
        values: dict[str, str] = dict(_PAIR.findall(text))
        if "train_runtime" in values:
            self.ends += 1
            return
        if not any(name in values for name in (*_TRAINING, *EVAL_LOSSES)):
            return
        if "train_loss" in values and "loss" not in values:
            return
        self.logs += "loss" in values
        self._begin_anew_if_told(values)
        self._metric = self._metric or next((name for name in EVAL_LOSSES if name in values), None)
        see_values(self.replay, values, self._step(text, values, trains="loss" in values), self._metric)

    def _begin_anew_if_told(self, values: dict[str, str]) -> None:
        """An epoch that goes back is another run in the same log: the last one counts."""
        epoch = number(values.get("epoch"))
        if epoch is not None and epoch < self._epoch:
            self.replay, self._bar_step = Replay(rounded=True), None
        self._epoch = self._epoch if epoch is None else epoch

    def _step(self, text: str, values: dict[str, str], trains: bool) -> int:
        if found := _OF.search(text):
            self.max_steps = int(found[2])
            return int(found[1])
        if (most := _step_of(values.get("total_steps"))) is not None:
            self.max_steps = most
        told = next((_step_of(values[name]) for name in _STEPS if name in values), None)
        if told is not None:
            return told
        last = self.replay.last_step
        if self._bar_step is not None and self._bar_step >= last + trains:
            return self._bar_step
        return last + trains  # steps are not told: logs are counted


def _step_of(value: str | None) -> int | None:
    found = number(value)
    return int(found) if found is not None and abs(found) < MOST_STEPS else None
