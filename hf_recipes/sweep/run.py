"""A sweep from its order to its table: trials as runs of their own, one after another, each kept in the book."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_recipes.checkpoints.lock import release_lock, take_lock
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.log import logger
from hf_recipes.core.stop_signals import StopListener
from hf_recipes.sweep.book import Book, Entry
from hf_recipes.sweep.median import Points
from hf_recipes.sweep.one_trial import Sweep, evaluate_trial, report, run_trial
from hf_recipes.sweep.order import Order, open_book, plan_trials
from hf_recipes.sweep.points import Point
from hf_recipes.sweep.pruning import Pruner, median_pruner, never, study_pruner
from hf_recipes.sweep.table import Row
from hf_recipes.sweep.telling import tell_plan, tell_time
from hf_recipes.sweep.trials import RATE, Trial, needs_overfit_check, told_point


def run_sweep(order: Order) -> list[Row]:
    """Run what of the sweep is left to do, and return the rows of its table, the best on top.

    Raises:
        UserError: a key of a trial is wrong, or the directory holds something else; before any trial has begun.
        CheckFailed: no trial ended well.
        Preempted: the sweep, or its trial, was asked to stop.
        KeyboardInterrupt: a second Ctrl-C.
    """
    book = open_book(order)
    planned = plan_trials(order)
    _take_directory(order.directory)
    listener = StopListener()
    listener.listen()
    try:
        sweep = Sweep(order, book, listener)
        if order.search == "optuna":
            _run_study(sweep)
        else:
            _run_planned(sweep, planned)
        _check_end(sweep)
        return report(sweep)
    finally:
        listener.close()
        release_lock(order.directory)


def _take_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        take_lock(directory)
    except OSError as error:
        raise UserError(f"--output_dir: '{directory}' cannot be written to ({error.strerror}): name another.") from None


def _run_planned(sweep: Sweep, trials: Sequence[Trial]) -> None:
    entries = [_enter(sweep.book, trial) for trial in trials]
    sweep.book.write(sweep.order.directory)
    states = [sweep.outcome(entry).state for entry in entries]
    left = [index for index, state in enumerate(states) if state in ("waiting", "stopped", "failed")]
    tell_plan(sweep.order, trials, states, len(left), len(sweep.book.entries) - len(trials))
    for done, index in enumerate(left):
        where = f"[{done + 1}/{len(left)}]"
        run_trial(sweep, trials[index], entries[index], _pruner(sweep), where, needs_overfit_check(trials, index))
        tell_time(sweep.seconds, len(left) - done - 1)
    for index, entry in enumerate(entries):
        if states[index] == "ok":
            evaluate_trial(sweep, entry)


def _enter(book: Book, trial: Trial) -> Entry:
    """The trial's entry: that of an earlier call with the same recipe, or a new one."""
    fingerprint = trial.recipe.fingerprint()
    for entry in book.entries.values():
        if entry.fingerprint == fingerprint and bool(entry.impossible) == bool(trial.impossible):
            return entry
    name = trial.name if trial.name not in book.entries else f"{trial.name}-{fingerprint[:6]}"
    entry = Entry(name, trial.point, fingerprint, impossible=trial.impossible)
    book.entries[name] = entry
    return entry


def _pruner(sweep: Sweep) -> Pruner:
    if sweep.order.prune != "median":
        return never()
    return median_pruner(sweep.order.metric, _curves(sweep))


def _curves(sweep: Sweep) -> list[Points]:
    found = (sweep.outcome(entry) for entry in sweep.book.entries.values())
    return [outcome.curve for outcome in found if outcome.state == "ok"]


def _run_study(sweep: Sweep) -> None:
    """Trials as Optuna asks for them; those that an earlier call left unfinished first."""
    from hf_recipes.sweep.optuna_study import Study

    order = sweep.order
    study = Study(order.directory, order.axes, order.seed, less=order.less, pruner=order.prune)
    wanted = order.trials or 0
    for number, (handle, point) in enumerate(_asked(study, wanted), start=study.told() + 1):
        (trial,) = order.trials_of([point])
        entry = _enter(sweep.book, trial)
        sweep.book.write(order.directory)
        found = sweep.outcome(entry)
        if found.state in ("waiting", "stopped", "failed"):
            pruner = study_pruner(order.metric, study, handle) if order.prune == "hyperband" else _pruner(sweep)
            found = run_trial(sweep, trial, entry, pruner, f"[{number}/{wanted}]", number == 1 and RATE not in point)
        study.tell(handle, found.target, found.state)


def _asked(study: Any, wanted: int) -> Iterator[tuple[Any, Point]]:
    unfinished = study.unfinished()
    if unfinished:
        logger.info("Optuna: going on with %s.", "; ".join(told_point(point) for _, point in unfinished))
    yield from unfinished
    while study.told() < wanted:
        yield study.ask()


def _check_end(sweep: Sweep) -> None:
    found = [sweep.outcome(entry) for entry in sweep.book.entries.values()]
    if not any(outcome.state == "ok" for outcome in found):
        first = next((outcome.sentence for outcome in found if outcome.sentence), "")
        report(sweep)
        raise CheckFailed(f"no trial of {len(found)} ended well; the first: {first}")
