"""A whole fine-tuning run: the rooms composed, from a recipe to a verified result. Serves sft and quickstart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, set_seed

from hf_recipes.checkpoints.lock import only_writer
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import barrier, first_on_each_machine, gather, is_main
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.data.mixing.streaming import StreamedData, stream_data
from hf_recipes.data.prepare import PreparedData, parts_by_role, prepare_data
from hf_recipes.data.report import report_table
from hf_recipes.data.settings import data_settings
from hf_recipes.models.source import ModelSource
from hf_recipes.models.trained_dtype import restore_dtypes, trained_dtypes
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.adapter_start import optimizer_of_run, start_adapter_of_run
from hf_recipes.training.arguments import total_steps
from hf_recipes.training.checkpointing import let_selective_reach_the_base
from hf_recipes.training.environment import check_world_size, use_all_cores
from hf_recipes.training.eval_parts import evaluate_in_parts
from hf_recipes.training.finish import train_and_save
from hf_recipes.training.fit import fit_in_memory
from hf_recipes.training.loss_kernels import choose_kernel
from hf_recipes.training.model import build_for_method
from hf_recipes.training.output import recorded_end, write_last_report
from hf_recipes.training.overfit.before_run import check_before_run, tell_left_out
from hf_recipes.training.parallelism import padded_to
from hf_recipes.training.plan_check import PlanCheck, planned_row, training_pace
from hf_recipes.training.plan_data import DEFAULT_LENGTH, supervised_share
from hf_recipes.training.resume import check_resume, find_resume
from hf_recipes.training.rows import TrainingRows, check_rows, choose_rows, longest_row, tell_padding
from hf_recipes.training.same_run import tell_other_data
from hf_recipes.training.setup import Setup, set_up, start_checkpoint_keeper, tell_setup, write_run_record
from hf_recipes.training.suite_rows import eval_sets, format_judge, recipe_suite, suite_parts
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


def train(recipe: Recipe) -> RunDirectory:
    """Train a recipe and leave a run directory with its result, verified; to be called on every rank.

    Raises:
        UserError: wrong use, on all ranks alike.
        CheckFailed: a watcher stopped the run, or a checkpoint did not verify.
    """
    if recipe.get("strategy") == "pp":  # no Trainer: the pipeline has a loop of its own
        from hf_recipes.training import pipelined

        if recipe.get("overfit_check", True):
            tell_left_out("strategy: pp")
        return pipelined.train(recipe)
    use_all_cores()
    setup = set_up(recipe)
    with only_writer(setup.run.path), recorded_end(setup.run.path) as end:
        built = build_run(setup)
        check_before_run(built)
        train_and_save(built.trainer, setup, built.source, built.resume, end)
        built.plan.add_measured(*training_pace(built.trainer))
        write_data_report(setup, built.data)  # once more: a stream is counted while it is read
    if is_main():
        write_last_report(setup.run)
    barrier()
    return setup.run


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
    suite_sets = suite_parts(suite, tokenizer, recipe.values)
    tell_setup(setup, source, report_table(data.report))
    longest = longest_row(data.train, recipe)
    plan.check(planned_row(longest, recipe), supervised_share(data.report))
    model = build_for_method(setup, source, tokenizer, longest_row=longest, resume=resume)
    rows = choose_rows(data.train, model, recipe, arguments, setup.precision)
    collator = SupervisedCollator(tokenizer.pad_token_id, padded_to(arguments), one_row=rows.one_row)
    start_adapter_of_run(setup, model, rows, collator, resume)
    check_resume(resume, model, total_steps(rows.count, arguments), streamed=rows.count == 0)
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


def eval_parts(data: PreparedData | StreamedData) -> Dataset | dict[str, Dataset] | None:
    """The eval rows; domain and general ones apart where there are both."""
    parts = {} if data.eval is None else parts_by_role(data.eval, data.report)
    return parts if len(parts) > 1 else data.eval


def prepare(setup: Setup, tokenizer: PreTrainedTokenizerBase, resume: Path | None) -> PreparedData | StreamedData:
    """The first rank of each machine prepares; the others find it on disk, however long that took. Streams are opened
    by every rank."""
    values = setup.recipe.values
    settings = data_settings(values)
    if values.get("streaming"):
        data: PreparedData | StreamedData = stream_data(values["datasets"], tokenizer, **settings)
    else:
        data = first_on_each_machine(lambda: prepare_data(values["datasets"], tokenizer, **settings))
    if len(set(gather(data.report["fingerprint"]))) > 1:
        raise UserError("The ranks read different data: give all of them the same files (same content, same recipe).")
    if data.eval is None and not (values.get("evaluation") or {}).get("during_training"):
        setup.arguments.eval_strategy = "no"
    if resume:
        tell_other_data(setup.run, data.report)
    write_data_report(setup, data)
    return data


def write_data_report(setup: Setup, data: PreparedData | StreamedData) -> None:
    """Write data.json (rank 0)."""
    if is_main():
        setup.run.write(setup.run.data_json, data.report)


def stop_at_end_of_turn(model: Any, report: dict[str, Any]) -> list[int]:
    """Let generation stop at the token that ends a turn in the template: it is trained, so it must also be obeyed."""
    known = model.generation_config.eos_token_id
    ids = [known] if isinstance(known, int) else list(known or [])
    end = report.get("end_of_turn") or {}
    if end.get("token_id") is not None and end["token_id"] not in ids:
        ids.insert(0, end["token_id"])
        model.generation_config.eos_token_id = ids
        logger.info("Generation stops at %r too, the end of a turn in this template.", end.get("text"))
    return ids
