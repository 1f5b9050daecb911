"""What watches a run of ours: the watchers of its recipe, sample answers, the live page, metrics for every tracker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hf_recipes.callbacks.answer_format import Judgement, judge_answer
from hf_recipes.callbacks.build import build_watchers
from hf_recipes.callbacks.config import WatchConfig
from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.callbacks.generations import GenerationWatch, Prompt
from hf_recipes.callbacks.metrics_feed import feed_metrics
from hf_recipes.callbacks.out_of_memory import explained_out_of_memory
from hf_recipes.callbacks.rank_watch import describe_missing_ranks
from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.checkpoints.preemption.guard import cut_evaluations
from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.labels import last_trained_stretch
from hf_recipes.core.log import logger
from hf_recipes.models.methods.prefix import generate_with_prefix
from hf_recipes.report.live import ReportCallback
from hf_recipes.training.preempting import recipe_guard

if TYPE_CHECKING:
    from hf_recipes.training.setup import Setup

# What an exception's text says when a collective lost another rank.
_LOST_RANK = ("connection closed by peer", "connection reset", "gloo", "nccl", "timed out", "timeout", "barrier")


def recipe_watchers(setup: Setup) -> list[TrainerCallback]:
    """The event log, the guard that saves when the run is asked to stop, and the watchers that the recipe's `watch:`
    asks for.

    Raises:
        UserError: a threshold is not known, or out of its range.
    """
    return [EventLogCallback(), recipe_guard(setup), *build_watchers(setup.ours.watch, last_good=_last_good)]


def watch_with(trainer: Any, setup: Setup, judge: Callable[[str, str | None], Judgement] = judge_answer) -> None:
    """Add what needs the trainer: an early end to evaluations when the run is asked to stop, sample answers to its eval
    rows (domain ones, where they are apart), by `judge`, the metrics feed, and the live page, last, so that it shows
    what the others wrote."""
    cut_evaluations(trainer)
    config = WatchConfig.from_dict(setup.ours.watch)
    rows = trainer.eval_dataset
    rows = next(iter(rows.values())) if isinstance(rows, dict) else rows
    if config.samples and (rows is None or not isinstance(rows[0]["labels"], Sequence)):
        why = "there are no eval rows to answer" if rows is None else "a classifier writes no answers"
        logger.warning("watch.samples has no effect: %s.", why)
    elif config.samples:
        prompts = sample_prompts(rows, trainer.processing_class, config.samples)
        if len(prompts) < config.samples:
            logger.info("watch.samples: %d asked for, there are %d eval rows.", config.samples, len(prompts))
        if setup.ours.method == "prefix":
            generate_with_prefix(trainer.accelerator.unwrap_model(trainer.model))
        trainer.add_callback(GenerationWatch(prompts, config.sample_tokens, judge))
    feed_metrics(trainer)
    if config.live_report:
        trainer.add_callback(ReportCallback())


@contextmanager
def explained_ends(arguments: Any) -> Iterator[None]:
    """Around the training: running out of memory and losing another rank become one sentence each.

    Raises:
        CheckFailed: from the error.
    """
    try:
        with explained_out_of_memory(arguments):
            yield
    except CheckFailed:
        raise
    except RuntimeError as error:
        text = str(error).lower()
        if any(sign in text for sign in _LOST_RANK) and (missing := describe_missing_ranks()):
            raise CheckFailed(missing) from error
        raise


def sample_prompts(rows: Any, tokenizer: Any, count: int) -> list[Prompt]:
    """`count` prompts spread evenly over prepared rows, each with the answer it should get."""
    every = max(1, len(rows) // count)
    chosen = [rows[index] for index in range(0, min(len(rows), every * count), every)]
    return [_prompt(row, tokenizer, *answer) for row in chosen if (answer := last_trained_stretch(row["labels"]))]


def _prompt(row: Mapping[str, Sequence[int]], tokenizer: Any, start: int, end: int) -> Prompt:
    answer = tokenizer.decode(row["input_ids"][start:end], skip_special_tokens=True)
    return Prompt([int(token) for token in row["input_ids"][:start]], answer.strip())


def _last_good(output_dir: Path) -> Path | None:
    return last_good_checkpoint(output_dir).path
