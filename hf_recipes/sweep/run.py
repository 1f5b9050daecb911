"""A sweep from its order to its table: trials as runs of their own, one after another, each kept in the book."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_recipes.checkpoints.lock import release_lock, take_lock
from hf_recipes.core.errors import CheckFailed, Preempted, UserError
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import is_run, list_checkpoints
from hf_recipes.core.stop_signals import StopListener
from hf_recipes.recipe.key_table import load_key_table
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.sweep.axes import Axis
from hf_recipes.sweep.base_answers import lend_base_answers
from hf_recipes.sweep.book import Book, Entry, check_same_sweep, plain_values, read_book
from hf_recipes.sweep.child import free_of_writer, last_words, run_child
from hf_recipes.sweep.median import Points
from hf_recipes.sweep.outcome import Outcome, read_outcome
from hf_recipes.sweep.points import Point, grid, one_by_one, random_points
from hf_recipes.sweep.pruning import Pruner, median_pruner, never, study_pruner
from hf_recipes.sweep.report import rows_of, write_reports
from hf_recipes.sweep.table import Row
from hf_recipes.sweep.trials import RATE, Trial, arguments, make_trials, needs_overfit_check, told_point

GO_ON = "the same command goes on"


@dataclass(frozen=True)
class Order:
    """What a sweep is asked for.

    Attributes:
        config: a recipe file, or the name of a shipped one.
        base: that recipe with `fixed`, the keys that are the same for all trials.
        axes: what is swept over.
        directory: of the sweep.
        search: ``grid``, ``random`` or ``optuna``.
        trials: how many are drawn, for the latter two.
        seed: of the draws.
        prune: None, ``median``, or ``hyperband`` with Optuna.
        metric: what the trials are sorted by.
        less: whether its lowest value is the best.
        evaluate: whether each trial is evaluated after its training.
        processes: of each trial.
        launch_flags: of `hf-recipes sft`, for each trial.
        own_launch: whether no accelerate config file is among them.
        hardware: a `Hardware` where precisions are to be left out that it has not.
    """

    config: str
    base: Recipe
    fixed: Mapping[str, Any]
    axes: Sequence[Axis]
    directory: Path
    search: str = "grid"
    trials: int | None = None
    seed: int = 42
    prune: str | None = None
    metric: str = "eval_loss"
    less: bool = True
    evaluate: bool = False
    processes: int = 1
    launch_flags: Sequence[str] = ()
    own_launch: bool = True
    hardware: Any = None

    def trials_of(self, points: Sequence[Point]) -> list[Trial]:
        """A trial for each point, checked."""
        return make_trials(self.config, self.fixed, points, self.processes, self.hardware, own_launch=self.own_launch)


@dataclass
class _Sweep:
    """What one call keeps in mind while it runs."""

    order: Order
    book: Book
    listener: StopListener
    seconds: list[float] = field(default_factory=list)

    def run_directory(self, name: str) -> Path:
        return self.order.directory / "trials" / name

    def outcome(self, entry: Entry) -> Outcome:
        return outcome_of(self.order.directory, entry, self.order.metric)


def outcome_of(directory: Path, entry: Entry, metric: str) -> Outcome:
    """What came of an entry so far."""
    if entry.impossible:
        return Outcome("left out", entry.impossible)
    run = directory / "trials" / entry.name
    found = read_outcome(run, metric, entry.pruned)
    if found.state == "waiting" and (told := last_words(run.with_suffix(run.suffix + ".log"))):
        return replace(found, state="failed", sentence=told)  # refused before it had a run directory
    return found


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
        sweep = _Sweep(order, book, listener)
        if order.search == "optuna":
            _run_study(sweep)
        else:
            _run_planned(sweep, planned)
        _check_end(sweep)
        return _report(sweep)
    finally:
        listener.close()
        release_lock(order.directory)


def _take_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        take_lock(directory)
    except OSError as error:
        raise UserError(f"--output_dir: '{directory}' cannot be written to ({error.strerror}): name another.") from None


def open_book(order: Order) -> Book:
    """The book of the order's directory, or a new one.

    Raises:
        UserError: the directory holds something else, or a sweep of other keys.
    """
    keys = [axis.key for axis in order.axes]
    book = read_book(order.directory)
    if book is None:
        return Book(order.base.name, plain_values(order.base.values), keys, order.metric)
    check_same_sweep(book, order.directory, order.base.name, order.base.values, keys)
    logger.info("Going on in %s, which holds %d trials.", order.directory, len(book.entries))
    book.keys = list(dict.fromkeys([*book.keys, *keys]))
    book.metric = order.metric
    return book


def plan_trials(order: Order) -> list[Trial]:
    """All trials of a grid, or the drawn ones, each checked; for Optuna, which chooses later, none, but each value of
    each key is checked.

    Raises:
        UserError: a key of a trial is wrong.
    """
    if order.search == "optuna":
        order.trials_of(one_by_one(order.axes))
        return []
    if order.search == "random":
        points = random_points(order.axes, order.trials or 0, order.seed)
        seeds = next((len(axis.values) for axis in order.axes if axis.key == "seed"), 1)
        if len(points) < (order.trials or 0) * seeds:
            logger.warning("--trials: there are only %d different points, not %d.", len(points) // seeds, order.trials)
    else:
        points = grid(order.axes)
    return order.trials_of(points)


def _run_planned(sweep: _Sweep, trials: Sequence[Trial]) -> None:
    entries = [_enter(sweep.book, trial) for trial in trials]
    sweep.book.write(sweep.order.directory)
    states = [sweep.outcome(entry).state for entry in entries]
    left = [index for index, state in enumerate(states) if state in ("waiting", "stopped", "failed")]
    _tell_plan(sweep, trials, states, len(left))
    for done, index in enumerate(left):
        where = f"[{done + 1}/{len(left)}]"
        _run_trial(sweep, trials[index], entries[index], _pruner(sweep), where, needs_overfit_check(trials, index))
        _tell_time(sweep, len(left) - done - 1)
    for index, entry in enumerate(entries):
        if states[index] == "ok":
            _evaluate(sweep, entry)


def _tell_plan(sweep: _Sweep, trials: Sequence[Trial], states: Sequence[str], left: int) -> None:
    order = sweep.order
    others = len(sweep.book.entries) - len(trials)
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    logger.info("%d trials in %s (%s), %d to run.", len(trials), order.directory, counts, left)
    if others > 0:
        logger.info("Trials of other calls that are in the table too: %d.", others)
    for trial in trials:
        if trial.impossible:
            logger.warning("Left out: %s: %s", trial.told(), trial.impossible)
    if order.base.get("on_finish"):
        logger.info("on_finish runs once, after the sweep, not after each trial.")
    _tell_overfit_check(trials, left)


def _tell_overfit_check(trials: Sequence[Trial], left: int) -> None:
    if not _knows_overfit_check() or not left or any("overfit_check" in trial.keys for trial in trials):
        return
    if any(RATE in trial.point for trial in trials):
        logger.info("overfit_check is off: it judges the learning rate too; `hf-recipes overfit` tests a recipe.")
    elif left > 1:
        logger.info("overfit_check is off for trials that are like one before but for seed, batch and length.")


def _tell_time(sweep: _Sweep, left: int) -> None:
    if left and sweep.seconds:
        seconds = sum(sweep.seconds) / len(sweep.seconds) * left
        logger.info("About %.0f min for the %d trials that are left.", seconds / 60, left)


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


def _run_trial(sweep: _Sweep, trial: Trial, entry: Entry, pruner: Pruner, where: str, overfit_check: bool) -> Outcome:
    order, run = sweep.order, sweep.run_directory(entry.name)
    _raise_if_stopped(sweep, 0, entry)  # asked between two trials
    log = run.with_suffix(run.suffix + ".log")
    if run.is_dir() and not free_of_writer(run):
        raise UserError(f"'{run}' is still being written by another process: wait for it, or end it.")
    goes_on = is_run(run) or bool(list_checkpoints(run))
    logger.info("%s %s%s", where, trial.told(), ", going on" if goes_on else "")
    started = time.monotonic()
    if not goes_on:
        log.unlink(missing_ok=True)
    code = run_child(
        _command(order, trial, run, goes_on, overfit_check), log, sweep.listener, lambda: pruner.looks_bad(run)
    )
    if pruner.reason and code == Preempted.exit_code and not sweep.listener.reason:
        entry.pruned = pruner.reason
    _raise_if_stopped(sweep, code, entry)
    _raise_if_refused(sweep, code, entry)
    if sweep.outcome(entry).state == "ok":
        sweep.seconds.append(time.monotonic() - started)
        _evaluate(sweep, entry)
    found = sweep.outcome(entry)
    _tell_end(where, found, order.metric, time.monotonic() - started, log)
    _report(sweep)
    return found


def _command(order: Order, trial: Trial, run: Path, goes_on: bool, overfit_check: bool) -> list[str]:
    extra: dict[str, Any] = {}
    if goes_on:
        extra["resume_from_checkpoint"] = "auto"
    if trial.recipe.get("on_finish"):
        extra["on_finish"] = "off"
    if not overfit_check and _knows_overfit_check() and "overfit_check" not in trial.keys:
        extra["overfit_check"] = "off"
    keys = {key: value for key, value in trial.keys.items() if key not in extra}
    return [
        "sft",
        "--config",
        order.config,
        *order.launch_flags,
        *arguments({**keys, **extra, "output_dir": str(run)}),
    ]


def _knows_overfit_check() -> bool:
    return "overfit_check" in load_key_table()


def _raise_if_stopped(sweep: _Sweep, code: int, entry: Entry) -> None:
    """Where somebody stopped the sweep, or its trial, the rest is for another call."""
    sweep.book.write(sweep.order.directory)
    reason = sweep.listener.reason
    if reason is None and (code not in (Preempted.exit_code, 130) or entry.pruned):
        return
    _report(sweep)
    by = f"by {reason}" if reason else f"with its trial {entry.name}"
    sentence = f"the sweep was stopped {by}; what is done is in {sweep.order.directory}, and {GO_ON}."
    if code == 130 and reason == "SIGINT":
        logger.warning("%s", sentence)
        raise KeyboardInterrupt
    raise Preempted(sentence)


def _raise_if_refused(sweep: _Sweep, code: int, entry: Entry) -> None:
    """What refuses a second trial in the words of the first refuses all; of another size, say, one may fit."""
    if code != UserError.exit_code:
        return
    found = [sweep.outcome(each) for each in sweep.book.entries.values()]
    sentence = sweep.outcome(entry).sentence
    refused = sum(outcome.state == "failed" and outcome.sentence == sentence for outcome in found)
    if refused > 1 and not any(outcome.state == "ok" for outcome in found):
        raise UserError(f"the first trials were refused: {sentence}")


def _tell_end(where: str, found: Outcome, metric: str, seconds: float, log: Path) -> None:
    if found.state == "ok":
        value = "none" if found.target is None else f"{found.target:.4g}"
        logger.info("%s %s %s, %.0f s", where, metric, value, seconds)
    else:
        see = "" if found.state == "pruned" else f" (see {log})"
        logger.warning("%s %s: %s%s", where, found.state, found.sentence or "it left no word", see)


def _evaluate(sweep: _Sweep, entry: Entry) -> None:
    run = sweep.run_directory(entry.name)
    if not sweep.order.evaluate or (run / "evaluation.json").is_file():
        return
    logger.info("Evaluating %s", entry.name)
    lend_base_answers(run, map(sweep.run_directory, sweep.book.entries))
    log = run.with_suffix(run.suffix + ".evaluate.log")
    code = run_child(["evaluate", str(run)], log, sweep.listener, lambda: False)
    if sweep.listener.reason:
        _raise_if_stopped(sweep, Preempted.exit_code, entry)
    if not (run / "evaluation.json").is_file():
        logger.warning("%s was not evaluated (exit code %d): %s", entry.name, code, last_words(log) or f"see {log}")


def _pruner(sweep: _Sweep) -> Pruner:
    if sweep.order.prune != "median":
        return never()
    return median_pruner(sweep.order.metric, _curves(sweep))


def _curves(sweep: _Sweep) -> list[Points]:
    found = (sweep.outcome(entry) for entry in sweep.book.entries.values())
    return [outcome.curve for outcome in found if outcome.state == "ok"]


def _run_study(sweep: _Sweep) -> None:
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
            found = _run_trial(sweep, trial, entry, pruner, f"[{number}/{wanted}]", number == 1 and RATE not in point)
        study.tell(handle, found.target, found.state)


def _asked(study: Any, wanted: int) -> Iterator[tuple[Any, Point]]:
    unfinished = study.unfinished()
    if unfinished:
        logger.info("Optuna: going on with %s.", "; ".join(told_point(point) for _, point in unfinished))
    yield from unfinished
    while study.told() < wanted:
        yield study.ask()


def _check_end(sweep: _Sweep) -> None:
    found = [sweep.outcome(entry) for entry in sweep.book.entries.values()]
    if not any(outcome.state == "ok" for outcome in found):
        first = next((outcome.sentence for outcome in found if outcome.sentence), "")
        _report(sweep)
        raise CheckFailed(f"no trial of {len(found)} ended well; the first: {first}")


def _report(sweep: _Sweep) -> list[Row]:
    """Write book, table, page, picture and the winner's recipe, as far as the sweep has come."""
    order, book = sweep.order, sweep.book
    for entry in book.entries.values():
        figures = asdict(sweep.outcome(entry))
        del figures["curve"]
        entry.figures = figures
    rows = rows_of(book, sweep.outcome, less=order.less)
    write_reports(order.directory, book, rows, less=order.less, recipe_of=_recipe_of(order, book))
    book.write(order.directory)
    return rows


def _recipe_of(order: Order, book: Book) -> Callable[[str], Recipe]:
    """The recipe of a trial by its name, made anew from its point; a `UserError` where that gives another one."""

    def recipe(name: str) -> Recipe:
        entry = book.entries[name]
        (trial,) = replace(order, hardware=None).trials_of([entry.point])
        if trial.recipe.fingerprint() != entry.fingerprint:
            raise UserError(f"the recipe of {name} is not that of this command line; it is in its run.json.")
        return trial.recipe

    return recipe
