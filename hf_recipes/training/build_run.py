"""A run built from its recipe, ready for its first step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, set_seed

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.data.mixing.streaming import StreamedData
from hf_recipes.data.prepare import PreparedData
from hf_recipes.data.report import report_table
from hf_recipes.models.source import ModelSource
from hf_recipes.models.trained_dtype import restore_dtypes, trained_dtypes
from hf_recipes.training.adapter_start import optimizer_of_run, start_adapter_of_run
from hf_recipes.training.arguments import total_steps, write_out_steps
from hf_recipes.training.checkpointing import let_selective_reach_the_base
from hf_recipes.training.environment import check_world_size
from hf_recipes.training.eval_parts import evaluate_in_parts
from hf_recipes.training.fit import fit_in_memory
from hf_recipes.training.loss_kernels import choose_kernel
from hf_recipes.training.model import build_for_method
from hf_recipes.training.parallelism import padded_to
from hf_recipes.training.plan_check import PlanCheck, planned_row
from hf_recipes.training.plan_data import DEFAULT_LENGTH, supervised_share
from hf_recipes.training.resume import check_resume, find_resume
from hf_recipes.training.rows import TrainingRows, check_rows, choose_rows, longest_row, tell_padding
from hf_recipes.training.run_data import eval_parts, prepare, stop_at_end_of_turn
from hf_recipes.training.setup import Setup, start_checkpoint_keeper, tell_setup, write_run_record
from hf_recipes.training.suite_rows import eval_sets, format_judge, recipe_suite, suite_parts, tell_trained_rows
from hf_recipes.training.trainer import SupervisedTrainer
from hf_recipes.training.watching import recipe_watchers, watch_with

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class BuiltRun:
    """A run ready to train: the trainer with data, model and watchers, and the checkpoint it starts from, if any."""

    setup: Setup
    trainer: SupervisedTrainer
    source: ModelSource
    data: PreparedData | StreamedData
    resume: Path | None
    plan: PlanCheck


def build_run(setup: Setup) -> BuiltRun:
    """Everything up to the first step: recipe checked, data prepared, model built, micro-batch and order decided,
    run.json and data.json written; to be called on every rank.

    Raises:
        UserError: wrong use, on all ranks alike.
    """
    recipe, arguments = setup.recipe, setup.arguments
    if setup.ours.strategy == "pp":
        raise UserError("strategy: pp is for `hf-recipes sft` only: take another strategy here.")
    check_rows(recipe)
    suite = recipe_suite(recipe.values)
    check_world_size(setup.ours.num_processes, arguments.world_size)
    plan = PlanCheck(setup)
    watchers = recipe_watchers(setup)
    resume = find_resume(setup)
    plan.check_any(recipe.values.get("max_length", DEFAULT_LENGTH))
    set_seed(arguments.seed)
    source, tokenizer = setup.load_tokenizer()
    data = prepare(setup, tokenizer, resume)
    tell_trained_rows(suite, data)
    suite_sets = suite_parts(suite, tokenizer, recipe.values)
    tell_setup(setup, source, report_table(data.report))
    longest = longest_row(data.train, recipe)
    plan.check(planned_row(longest, recipe), supervised_share(data.report))
    model = build_for_method(setup, source, tokenizer, longest_row=longest, resume=resume)
    rows = choose_rows(data.train, model, recipe, arguments, setup.precision)
    collator = SupervisedCollator(tokenizer.pad_token_id, padded_to(arguments), one_row=rows.one_row)
    start_adapter_of_run(setup, model, rows, collator, resume)
    check_resume(resume, model, total_steps(rows.count, arguments), streamed=rows.count == 0)
    if resume is not None:
        write_out_steps(arguments, total_steps(rows.count, arguments))
    fitted = fit_in_memory(model, recipe, arguments, setup.precision, rows)
    tell_padding(rows, arguments)
    stop_ids = stop_at_end_of_turn(model, data.report)
    write_run_record(setup, source, model, task="causal_lm", end_of_turn_token_ids=stop_ids, fitted=fitted)
    callbacks = [*watchers, start_checkpoint_keeper(setup, source)]
    evaluated = eval_sets(eval_parts(data), suite_sets)
    trainer = _build_trainer(setup, model, tokenizer, data, evaluated, rows, collator, callbacks)
    evaluate_in_parts(trainer)
    watch_with(trainer, setup, format_judge(suite))
    return BuiltRun(setup, trainer, source, data, resume, plan)


def _build_trainer(
    setup: Setup,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    data: PreparedData | StreamedData,
    evaluated: Dataset | dict[str, Dataset] | None,
    rows: TrainingRows,
    collator: SupervisedCollator,
    callbacks: list[TrainerCallback],
) -> SupervisedTrainer:
    arguments, dtypes = setup.arguments, trained_dtypes(model)
    let_selective_reach_the_base(model, arguments.activation_checkpointing_kwargs)
    trainer = SupervisedTrainer(
        model=model,
        args=arguments,
        data_collator=collator,
        train_dataset=rows.dataset,
        eval_dataset=evaluated,
        processing_class=tokenizer,
        callbacks=callbacks,
        optimizers=(optimizer_of_run(setup, model), None),
    )
    restore_dtypes(model, dtypes)
    if trainer.aux_loss_enabled and not rows.packed:  # padding must not count among the tokens that experts share
        trainer.data_collator = replace(collator, return_attention_mask=True)
    trainer.loss_kernel = choose_kernel(
        setup.ours.loss_kernel, model.get_output_embeddings(), setup.precision.autocast_dtype
    )
    return trainer
