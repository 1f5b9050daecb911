"""The recipe's `evaluation:` during the training: checked before it, and a few of its rows as eval sets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_recipes.callbacks.answer_format import Judgement, judge_answer
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import first_on_each_machine
from hf_recipes.data.choosing.keys import prompt_key
from hf_recipes.data.mixing.streaming import StreamedData
from hf_recipes.data.prepare import PreparedData, prepare_data
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.evaluation.judges.formats import format_check
from hf_recipes.evaluation.judging import checked_suite
from hf_recipes.evaluation.rows import draw
from hf_recipes.evaluation.suite import EvaluationSuite
from hf_recipes.training.plan_data import DEFAULT_LENGTH

if TYPE_CHECKING:
    from datasets import Dataset

PREFIX = "suite_"


def recipe_suite(recipe: Mapping[str, Any]) -> EvaluationSuite | None:
    """The recipe's `evaluation:`, its files read and found well-formed: what could not be evaluated after hours of
    training is told before it. None where the recipe has none.

    Raises:
        UserError: see `EvaluationSuite.from_dict`; a row is ill-formed, or the format is none.
    """
    return checked_suite(recipe.get("evaluation"))


def tell_trained_rows(suite: EvaluationSuite | None, data: PreparedData | StreamedData) -> None:
    """Warn of rows of the `evaluation:` whose prompt is trained on: answers to them show memory, not skill."""
    if suite is None or suite.domain is None:
        return
    if isinstance(data, StreamedData):
        logger.info("evaluation.domain: whether its rows are trained on as well is not looked for in streams.")
        return
    rows = suite.domain_rows
    trained = np.isin(np.array([prompt_key(row.messages) for row in rows], np.uint64), data.prompt_keys)
    if trained.any():
        logger.warning(
            "evaluation.domain: %d of %d prompts are trained on too (first: row %d of %s), and answers to them show "
            "memory, not skill: take these rows out of the one or the other.",
            *(trained.sum(), len(rows), rows[int(trained.argmax())].number, suite.domain.path),
        )


def suite_parts(suite: EvaluationSuite | None, tokenizer: Any, recipe: Mapping[str, Any]) -> dict[str, Dataset]:
    """`evaluation.during_training` rows of its `domain` and of its `general`, masked as those trained on; the Trainer
    logs their losses as ``eval_suite_domain_loss`` and ``eval_suite_general_loss``. To be called on every rank.

    Raises:
        UserError: no row is left of a file.
    """
    if suite is None or not suite.during_training:
        return {}
    sources = {"domain": suite.domain, "general": suite.general}
    count = suite.during_training
    return {
        PREFIX + name: first_on_each_machine(partial(_rows, source, tokenizer, recipe, count))
        for name, source in sources.items()
        if source is not None
    }


def eval_sets(own: Any, suite: Mapping[str, Dataset]) -> Any:
    """The data's own eval rows, in parts or not, with those of the suite; what the Trainer takes as `eval_dataset`."""
    if not suite:
        return own
    parts = own if isinstance(own, dict) else {} if own is None else {"held_out": own}
    return {**parts, **suite}


def format_judge(suite: EvaluationSuite | None) -> Callable[[str, str | None], Judgement]:
    """The judge of sample answers: the suite's format where it has one; empty and repeating answers are never right."""
    if suite is None or suite.format_spec is None:
        return judge_answer
    check = format_check(suite.format_spec)

    def judge(answer: str, reference: str | None) -> Judgement:
        well_formed, why = judge_answer(answer, None)
        if well_formed is False:
            return well_formed, why
        verdict = check(answer)
        return verdict.strict, verdict.why

    return judge


def _rows(source: SourceSpec, tokenizer: Any, recipe: Mapping[str, Any], count: int) -> Dataset:
    length = recipe.get("max_length") or DEFAULT_LENGTH
    data = prepare_data([source], tokenizer, max_length=length, eval_share=0, general_share=0).train
    if not len(data):
        raise UserError(f"evaluation.during_training: no row of {source.path} can be used: see why above.")
    return data.select(draw(range(len(data)), count))
