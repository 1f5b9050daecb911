"""One trial of a sweep: a run of `hf-recipes sft`, watched, then evaluated; what came of it is in the book."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import Preempted, UserError
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import is_run, list_checkpoints
from hf_recipes.core.stop_signals import StopListener
from hf_recipes.sweep.base_answers import lend_base_answers
from hf_recipes.sweep.book import Book, Entry
from hf_recipes.sweep.child import free_of_writer, last_words, run_child
from hf_recipes.sweep.order import Order, recipe_of
from hf_recipes.sweep.outcome import Outcome, read_outcome
from hf_recipes.sweep.pruning import Pruner
from hf_recipes.sweep.report import rows_of, write_reports
from hf_recipes.sweep.table import Row
from hf_recipes.sweep.telling import tell_end
from hf_recipes.sweep.trials import Trial, arguments

GO_ON = "the same command goes on"


@dataclass
class Sweep:
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


def run_trial(sweep: Sweep, trial: Trial, entry: Entry, pruner: Pruner, where: str, overfit_check: bool) -> Outcome:
    """Run a trial, or go on with it, and put into the book what came of it.

    Args:
        sweep: The sweep it is of.
        trial: What is trained.
        entry: Its line in the book.
        pruner: What may stop it.
        where: Told before each sentence, as ``[2/5]``.
        overfit_check: Whether the overfit test is made before it.

    Raises:
        UserError: Another process writes to it; or all trials are refused in the same words.
        Preempted: The sweep, or the trial, was asked to stop.
        KeyboardInterrupt: A second Ctrl-C.
    """
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
        evaluate_trial(sweep, entry)
    found = sweep.outcome(entry)
    tell_end(where, found, order.metric, time.monotonic() - started, log)
    report(sweep)
    return found


def _command(order: Order, trial: Trial, run: Path, goes_on: bool, overfit_check: bool) -> list[str]:
    extra: dict[str, Any] = {}
    if goes_on:
        extra["resume_from_checkpoint"] = "auto"
    if trial.recipe.get("on_finish"):
        extra["on_finish"] = "off"
    if not overfit_check and "overfit_check" not in trial.keys:
        extra["overfit_check"] = "off"
    keys = {key: value for key, value in trial.keys.items() if key not in extra}
    return [
        "sft",
        "--config",
        order.config,
        *order.launch_flags,
        *arguments({**keys, **extra, "output_dir": str(run)}),
    ]


def _raise_if_stopped(sweep: Sweep, code: int, entry: Entry) -> None:
    """Where somebody stopped the sweep, or its trial, the rest is for another call."""
    sweep.book.write(sweep.order.directory)
    reason = sweep.listener.reason
    if reason is None and (code not in (Preempted.exit_code, 130) or entry.pruned):
        return
    report(sweep)
    by = f"by {reason}" if reason else f"with its trial {entry.name}"
    sentence = f"the sweep was stopped {by}; what is done is in {sweep.order.directory}, and {GO_ON}."
    if code == 130 and reason == "SIGINT":
        logger.warning("%s", sentence)
        raise KeyboardInterrupt
    raise Preempted(sentence)


def _raise_if_refused(sweep: Sweep, code: int, entry: Entry) -> None:
    """What refuses a second trial in the words of the first refuses all; of another size, say, one may fit."""
    if code != UserError.exit_code:
        return
    found = [sweep.outcome(each) for each in sweep.book.entries.values()]
    sentence = sweep.outcome(entry).sentence
    refused = sum(outcome.state == "failed" and outcome.sentence == sentence for outcome in found)
    if refused > 1 and not any(outcome.state == "ok" for outcome in found):
        raise UserError(f"the first trials were refused: {sentence}")


def evaluate_trial(sweep: Sweep, entry: Entry) -> None:
    """Evaluate a trial that ended well, unless the sweep does not, or it is done."""
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


def report(sweep: Sweep) -> list[Row]:
    """Write book, table, page, picture and the winner's recipe, as far as the sweep has come."""
    order, book = sweep.order, sweep.book
    for entry in book.entries.values():
        figures = asdict(sweep.outcome(entry))
        del figures["curve"]
        entry.figures = figures
    rows = rows_of(book, sweep.outcome, less=order.less)
    write_reports(order.directory, book, rows, less=order.less, recipe_of=recipe_of(order, book))
    book.write(order.directory)
    return rows
