"""The run directory: where a run keeps what later verbs need, and how a verb finds it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json, write_json

_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")


@dataclass(frozen=True)
class RunDirectory:
    """Names the files of a run; reads and writes its JSON files. Holds no state."""

    path: Path

    @property
    def run_json(self) -> Path:
        """Resolved recipe, base model and revision, versions, hardware, world size, seeds."""
        return self.path / "run.json"

    @property
    def data_json(self) -> Path:
        """The data ledger: counts by source, realised shares, split, fingerprints."""
        return self.path / "data.json"

    @property
    def plan_json(self) -> Path:
        """What was planned, for planned against measured."""
        return self.path / "plan.json"

    @property
    def status_json(self) -> Path:
        """How the run ended: ``code``, ``sentence``, ``last_step``."""
        return self.path / "status.json"

    @property
    def evaluation_json(self) -> Path:
        """Base against tuned."""
        return self.path / "evaluation.json"

    @property
    def adapter(self) -> Path:
        """The trained PEFT adapter, for adapter methods."""
        return self.path / "adapter"

    @property
    def model(self) -> Path:
        """The trained model, for full fine-tuning."""
        return self.path / "model"

    @property
    def result(self) -> Path:
        """The adapter or the model, whichever this run made; raises `UserError` when it has neither yet."""
        for candidate in (self.adapter, self.model):
            if (candidate / "config.json").exists() or (candidate / "adapter_config.json").exists():
                return candidate
        raise UserError(f"{self.path} holds no finished result (adapter/ or model/): let the run end, or resume it.")

    @property
    def merged_bf16(self) -> Path:
        """Where `merge --to bf16` puts its result."""
        return self.path / "merged-bf16"

    def merged(self, dtype_name: str) -> Path:
        """Where `merge --to dtype_name` puts its result (``bf16``, ``fp16``, ``fp32``)."""
        return self.path / f"merged-{dtype_name}"

    def checkpoints(self) -> list[Path]:
        """All ``checkpoint-N`` directories, by ascending step, verified or not."""
        return list_checkpoints(self.path)

    def read(self, file: Path) -> dict[str, Any]:
        """Read one of the run's JSON files; a missing or damaged one is a `UserError`."""
        try:
            return read_json(file)
        except FileNotFoundError:
            raise UserError(f"{file} is missing: {self.path} is not a run directory, or the run ended early.") from None
        except ValueError as error:
            raise UserError(f"{file} is not valid JSON ({error}): restore it or use another run.") from None

    def write(self, file: Path, value: dict[str, Any]) -> None:
        """Write one of the run's JSON files, whole or not at all."""
        write_json(file, value)


def list_checkpoints(directory: Path) -> list[Path]:
    """Return ``checkpoint-N`` subdirectories of `directory` by ascending N."""
    found = []
    for child in directory.iterdir() if directory.is_dir() else ():
        match = _CHECKPOINT.match(child.name)
        if match and child.is_dir():
            found.append((int(match.group(1)), child))
    return [child for _, child in sorted(found)]


def checkpoint_step(checkpoint: Path) -> int:
    """The N of a ``checkpoint-N`` path; raises `UserError` for any other name."""
    match = _CHECKPOINT.match(checkpoint.name)
    if not match:
        raise UserError(f"'{checkpoint}' is not a checkpoint: its name must be checkpoint-N.")
    return int(match.group(1))


def is_run(path: Path) -> bool:
    """Whether `path` is a run directory (it holds ``run.json``)."""
    return (path / "run.json").is_file()


def find_run(path: str | Path | None, runs_root: Path = Path("runs")) -> RunDirectory:
    """Open the run at `path`; without one, the current directory if it is a run, else the newest under `runs_root`.

    Raises:
        UserError: `path` is no run directory, or there is none to choose.
    """
    if path is not None:
        candidate = Path(path)
        if not candidate.exists():
            raise UserError(f"Run directory '{candidate}' does not exist: give the output_dir of a run.")
        if not is_run(candidate):
            raise UserError(f"'{candidate}' is not a run directory (no run.json in it): give the output_dir of a run.")
        return RunDirectory(candidate)
    if is_run(Path.cwd()):
        return RunDirectory(Path.cwd())
    runs = [child for child in runs_root.iterdir() if is_run(child)] if runs_root.is_dir() else []
    if not runs:
        raise UserError(f"No run found here or under {runs_root}/: name a run directory, or train one first.")
    return RunDirectory(max(runs, key=lambda run: (run / "run.json").stat().st_mtime))
