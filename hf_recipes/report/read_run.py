"""Reads what a run directory holds; a missing or damaged file leaves its part empty and is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.files import read_json, refuse_special
from hf_recipes.core.run_directory import RunDirectory, checkpoint_step
from hf_recipes.report.history import History

RESULT_NAMES = ("adapter", "model", "merged-bf16", "merged-fp16", "merged-fp32")


@dataclass(frozen=True)
class Saved:
    """A checkpoint or result: its `step` (None for results), and whether its two marks are there."""

    name: str
    step: int | None
    manifest: bool
    verified: bool


@dataclass(frozen=True)
class RunRecord:
    """A run as its directory tells it. Dicts are empty where the file is absent; `problems` names damaged ones."""

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)
    saved: list[Saved] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe, empty where run.json has none."""
        recipe = self.run.get("recipe")
        return recipe if isinstance(recipe, dict) else {}

    @property
    def name(self) -> str:
        """The run's directory, by which its user knows it."""
        return self.path.resolve().name


class RunReader:
    """Reads a run again and again, of its event files only what has been added since."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._forget()

    def _forget(self) -> None:
        self.history = History()
        self._files: dict[Path, _EventFile] = {}

    def read(self) -> RunRecord:
        """All that the report shows, as it is now. Never raises on absent or damaged files."""
        problems: list[str] = []
        place = self.run
        files = (place.run_json, place.status_json, place.data_json, place.evaluation_json, place.plan_json)
        run, status, data, evaluation, plan = (_read_object(path, problems) for path in files)
        problems += self._read_events()
        saved = _saved(self.run)
        return RunRecord(self.run.path, run, status, data, evaluation, plan, self.history, saved, problems)

    def _read_events(self) -> list[str]:
        paths = [self.run.path / "events.jsonl", *sorted(self.run.path.glob("events.rank*.jsonl"))]
        if any(file.has_shrunk() for file in self._files.values()):  # replaced by another run's
            self._forget()
        problems = []
        for path in paths:
            file = self._files.setdefault(path, _EventFile(path))
            try:
                file.read_on(self.history)
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append(f"{path.name} cannot be read: {error.strerror or error}")
            problems += file.problems()
        return problems


class _EventFile:
    """One event file and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._line = 0
        self._lost: list[int] = []
        self._cut = False

    def has_shrunk(self) -> bool:
        return self._offset > 0 and (not self.path.is_file() or self.path.stat().st_size < self._offset)

    def read_on(self, history: History) -> None:
        refuse_special(self.path)
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            for line in file:
                self._cut = not line.endswith(b"\n")
                if self._cut and _event(line) is None:
                    return  # still being written, or cut short by a kill
                self._offset += len(line)
                self._line += 1
                event = _event(line)
                if line.strip() and (event is None or not history.add(event)):
                    self._lost.append(self._line)
                self._cut = False

    def problems(self) -> list[str]:
        told = []
        if self._lost:
            some = ", ".join(map(str, self._lost[:5])) + (", …" if len(self._lost) > 5 else "")
            one = len(self._lost) == 1
            what = "line holds no event and is left out" if one else "lines hold no event and are left out"
            told.append(f"{self.path.name}: {len(self._lost)} {what} (line {some})")
        if self._cut:
            told.append(f"{self.path.name}: the last line is cut short and is left out")
        return told


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def read_run(run: RunDirectory) -> RunRecord:
    """Read all that the report shows, once. Never raises on absent or damaged files."""
    return RunReader(run).read()


def _read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        value = read_json(path)
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} holds no JSON object")
        return {}
    return value


def _saved(run: RunDirectory) -> list[Saved]:
    places: list[tuple[Path, int | None]] = [(path, checkpoint_step(path)) for path in run.checkpoints()]
    places += [(run.path / name, None) for name in RESULT_NAMES if (run.path / name).is_dir()]
    return [
        Saved(path.name, step, (path / "manifest.json").is_file(), (path / "verified.json").is_file())
        for path, step in places
    ]
