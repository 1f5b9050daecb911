"""Reads a run's folder, ours by the report's way of reading it, others' by their ``trainer_state.json``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.run_directory import RunDirectory, list_checkpoints
from hf_recipes.doctor.run.case import AlarmSeen, Case
from hf_recipes.doctor.run.replay import Replay
from hf_recipes.doctor.run.settings import Settings, settings_of_recipe
from hf_recipes.report.history import History

STATE = "trainer_state.json"
MOST_STEPS = 10**15  # no run has so many: a step or a length beyond it is damage
EVAL_LOSSES = ("eval_loss", "eval_domain_loss")


def state_file(path: Path) -> Path | None:
    """The newest ``trainer_state.json`` of a folder: its own, else that of its last checkpoint."""
    places = [path / STATE, *(place / STATE for place in reversed(list_checkpoints(path)))]
    return next((file for file in places if file.is_file()), None)


def read_case(path: Path) -> Case:
    """Read a run's folder.

    Raises:
        UserError: it is no run's folder, or its only record cannot be read.
    """
    for place in path.iterdir():
        if place.exists() and not place.is_file() and not place.is_dir():  # reading it might never end
            raise UserError(f"'{place}' is a pipe or a device, and not a file of a run: remove it.")
    if any((path / name).is_file() for name in ("run.json", "events.jsonl", "status.json")):
        return _with_curves(_of_record(path), path)
    file = state_file(path)
    if file is None:
        raise UserError(f"'{path}' is no run (no run.json, events.jsonl or {STATE} in it): give a run's directory.")
    return _of_state_file(file, path)


def _of_state_file(file: Path, path: Path) -> Case:
    try:
        state = read_json(file)
    except (ValueError, OSError) as error:
        raise UserError(f"'{file}' cannot be read ({error}): take a checkpoint's {STATE}, or the run's log.") from None
    if not isinstance(state, Mapping):
        raise UserError(f"'{file}' holds no JSON object: take a checkpoint's {STATE}, or the run's log.")
    return case_of_state(state, path.resolve().name, adapter=_has_adapter(path))


def _with_curves(case: Case, path: Path) -> Case:
    """Watchers in somebody's own script write alarms and no curves: those are in what the Trainer saves."""
    if case.replay.losses + case.replay.evaluations or (file := state_file(path)) is None:
        return case
    try:
        saved = _of_state_file(file, path)
    except UserError as error:
        return replace(case, problems=(*case.problems, str(error)))
    settings = case.settings if (path / "run.json").is_file() else saved.settings
    return replace(case, replay=saved.replay, settings=settings)


def _has_adapter(path: Path) -> bool | None:
    places = [path, *list_checkpoints(path)]
    if any((place / "adapter_config.json").is_file() for place in places):
        return True
    return False if any((place / "config.json").is_file() for place in places) else None


def case_of_state(state: Mapping[str, Any], name: str, adapter: bool | None = None) -> Case:
    """A Trainer's state as a case.

    Args:
        state: of ``trainer_state.json``.
        name: how the user knows the run.
        adapter: whether an adapter was trained; None where it is not known.
    """
    replay = Replay()
    history = state.get("log_history")
    entries = [entry for entry in history if isinstance(entry, Mapping)] if isinstance(history, list) else []
    metric = next((name for name in EVAL_LOSSES if any(name in entry for entry in entries)), None)
    for entry in entries:
        see_values(replay, entry, _whole(entry.get("step")) or replay.last_step, metric)
    most = _whole(state.get("max_steps"))
    full = None if adapter is None else not adapter
    settings = Settings(full=full, max_steps=most, evaluates=replay.evaluations > 0)
    return Case(name, replay, settings)


def see_values(replay: Replay, values: Mapping[str, Any], step: int, metric: str | None) -> None:
    """Show one log of a Trainer to the detectors.

    Args:
        values: as logged; numbers may be text.
        step: updates made.
        metric: the evaluation's loss that counts; with several eval sets each is logged by itself.
    """
    loss, norm, rate = (number(values.get(name)) for name in ("loss", "grad_norm", "learning_rate"))
    rate = number(values.get("lr")) if rate is None else rate  # LLaMA-Factory's trainer_log.jsonl
    if loss is not None or norm is not None:
        replay.see(step, loss, norm, rate)
    evaluated = number(values.get(metric)) if metric is not None else None
    if evaluated is not None:
        replay.see_eval(step, evaluated)


def number(value: Any) -> float | None:
    """A logged value as a number: also of text ('nan', '1e-05'); None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):  # a whole number of 400 digits is none that was measured
        return None


def _whole(value: Any) -> int | None:
    """A count that is one; what no run can have is not known."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_STEPS else None


def _of_record(path: Path) -> Case:
    from hf_recipes.report.comparison import missed_conditions
    from hf_recipes.report.read_run import read_run
    from hf_recipes.report.verdict import verdict

    record = read_run(RunDirectory(path))
    history, standing = record.history, verdict(record)
    replay = Replay()
    columns = [history.series("log", name) for name in ("loss", "grad_norm", "learning_rate")]
    _show(replay, columns, [history.series("eval", name) for name in EVAL_LOSSES if name in history.names("eval")])
    precision = record.run.get("precision")
    settings = settings_of_recipe(record.recipe, precision if isinstance(precision, Mapping) else {}, history.max_steps)
    ended = not standing.running and record.status
    marked = [one for one in record.saved if one.step is not None]
    return Case(
        name=record.name,
        replay=replay,
        settings=settings,
        alarms=tuple(_alarms(history.of_kind("alarm"))),
        preflight=tuple(_preflight(history.of_kind("overfit"))),
        data=record.data,
        code=_whole(record.status.get("code")) if ended else None,
        ended=str(record.status.get("sentence", "")) if ended else "",
        silent=standing.sentence if standing.word.startswith("Silent") and _kept_pace(history) else "",
        unverified=tuple(one.name for one in marked if not one.verified) if any(one.verified for one in marked) else (),
        data_wait=_median(history.series("log", "data_wait_share")),
        missed=tuple(missed_conditions(record.evaluation)),
        problems=tuple(record.problems),
    )


def _show(replay: Replay, columns: Iterable[Any], evaluations: Iterable[Any]) -> None:
    """Training and evaluation logs in the order of their steps, as they came."""
    by_step: dict[int, list[float | None]] = {}
    for place, series in enumerate(columns):
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            by_step.setdefault(step, [None, None, None])[place] = value
    evaluated = {
        step: value
        for series in list(evaluations)[:1]
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True)
    }
    for step in sorted({*by_step, *evaluated}):
        if step in by_step:
            loss, norm, rate = by_step[step]
            if loss is not None or norm is not None:
                replay.see(step, loss, norm, rate)
        if step in evaluated:
            replay.see_eval(step, evaluated[step])


def _preflight(events: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """What the newest overfit test named, if it failed."""
    if events and events[-1].get("status") == "failed":
        causes = events[-1].get("causes")
        yield from (one for one in causes if isinstance(one, Mapping)) if isinstance(causes, list) else ()


def _alarms(events: Iterable[Mapping[str, Any]]) -> Iterable[AlarmSeen]:
    for event in events:
        yield AlarmSeen(
            str(event.get("detector", "")),
            str(event.get("verdict", "")),
            int(event["step"]),
            str(event.get("message", "")),
            event,
        )


def _kept_pace(history: History) -> bool:
    """Whether it wrote more than alarms: watchers in somebody's own script say nothing while all is well."""
    return any(history.of_kind(kind) for kind in ("begin", "log", "eval"))


def _median(series: Any) -> float | None:
    values = [value for value in series.values.tolist() if math.isfinite(value)]
    return statistics.median(values) if len(values) >= 5 else None
