"""Reads what a run directory holds; a missing or damaged file leaves its part empty and is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.events import read_events
from hf_recipes.core.files import read_json
from hf_recipes.core.run_directory import RunDirectory, checkpoint_step

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
    events: list[dict[str, Any]] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe, empty where run.json has none."""
        recipe = self.run.get("recipe")
        return recipe if isinstance(recipe, dict) else {}


def read_run(run: RunDirectory) -> RunRecord:
    """Read all that the report shows. Never raises on absent or damaged files."""
    problems: list[str] = []

    def read(path: Path) -> dict[str, Any]:
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

    return RunRecord(
        path=run.path,
        run=read(run.run_json),
        status=read(run.status_json),
        data=read(run.data_json),
        evaluation=read(run.evaluation_json),
        events=read_events(run.path),
        saved=_saved(run),
        problems=problems,
    )


def _saved(run: RunDirectory) -> list[Saved]:
    places: list[tuple[Path, int | None]] = [(path, checkpoint_step(path)) for path in run.checkpoints()]
    places += [(run.path / name, None) for name in RESULT_NAMES if (run.path / name).is_dir()]
    return [
        Saved(path.name, step, (path / "manifest.json").is_file(), (path / "verified.json").is_file())
        for path, step in places
    ]
