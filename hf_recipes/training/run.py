"""A whole run: the rooms composed, from a recipe to a verified result. Serves sft and quickstart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, set_seed

from hf_recipes.callbacks.build import build_watchers
from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.checkpoints.choose import resolve_resume
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import barrier, from_main, gather, is_main
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.data.collate import SupervisedCollator
from hf_recipes.data.prepare import PreparedData, prepare_data
from hf_recipes.data.report import report_table
from hf_recipes.data.settings import data_settings
from hf_recipes.models.precision import Hardware, Precision, describe, detect_hardware
from hf_recipes.models.source import ModelSource, find_model
from hf_recipes.models.tokenizer import load_tokenizer
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.report.page import write_report
from hf_recipes.training.arguments import build_arguments, recipe_precision
from hf_recipes.training.environment import check_world_size, use_all_cores
from hf_recipes.training.model import BuiltModel, build_for_method
from hf_recipes.training.output import choose_output, record_run, recorded_end
from hf_recipes.training.trainer import SupervisedTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import ModelConfig, SFTConfig

    from hf_recipes.recipe.keys import RecipeArguments


@dataclass(frozen=True)
class Setup:
    """What is fixed before anything is loaded: the recipe in HF's dataclasses, the machine, the place to write."""

    recipe: Recipe
    arguments: SFTConfig
    model_settings: ModelConfig
    ours: RecipeArguments
    hardware: Hardware
    precision: Precision
    run: RunDirectory

    @property
    def global_batch_size(self) -> int:
        """Samples that meet in one optimizer step: micro-batch × accumulation × ranks."""
        arguments = self.arguments
        return arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size


def train(recipe: Recipe) -> RunDirectory:
    """Train a recipe and leave a run directory with its result, verified; to be called on every rank.

    Raises:
        UserError: wrong use, on all ranks alike.
        CheckFailed: a watcher stopped the run, or a checkpoint did not verify.
    """
    use_all_cores()
    setup = set_up(recipe)
    with recorded_end(setup.run.path) as end:
        check_world_size(setup.ours.num_processes, setup.arguments.world_size)
        watchers = build_watchers(setup.ours.watch)
        resume = from_main(lambda: resolve_resume(recipe.get("resume_from_checkpoint"), setup.run.path))
        set_seed(setup.arguments.seed)
        source, tokenizer = _load_tokenizer(setup)
        data = _prepare_data(recipe, tokenizer, setup.run)
        _tell(setup, source, data)
        built = build_for_method(
            setup.ours.method,
            source,
            tokenizer,
            setup.model_settings,
            setup.precision,
            trust_remote_code=setup.arguments.trust_remote_code,
        )
        stop_ids = _stop_at_end_of_turn(built.model, data.report)
        _record(setup, source, built, end_of_turn_token_ids=stop_ids)
        trainer = _build_trainer(setup, source, tokenizer, data, built, watchers)
        try:
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        finally:
            end["last_step"] = trainer.state.global_step
        raise_if_stopped(trainer)
        _save_result(trainer, setup, source)
        end["sentence"] = f"finished {trainer.state.global_step} steps"
    if is_main():
        write_report(setup.run)
    barrier()
    return setup.run


def set_up(recipe: Recipe) -> Setup:
    """Resolve a recipe against this machine and choose the run directory; joins the process group."""
    hardware = detect_hardware()
    precision = recipe_precision(recipe, hardware)
    arguments, model_settings, ours = build_arguments(recipe, hardware, precision)
    run = RunDirectory(from_main(lambda: choose_output(recipe)))
    arguments.output_dir = str(run.path)
    return Setup(recipe, arguments, model_settings, ours, hardware, precision, run)


def _load_tokenizer(setup: Setup) -> tuple[ModelSource, PreTrainedTokenizerBase]:
    name, revision = setup.model_settings.model_name_or_path, setup.model_settings.model_revision
    source = from_main(lambda: find_model(name, revision))
    tokenizer = load_tokenizer(
        name,
        revision=revision,
        chat_template_path=setup.recipe.get("chat_template_path"),
        trust_remote_code=setup.arguments.trust_remote_code,
    )
    return source, tokenizer


def _prepare_data(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, run: RunDirectory) -> PreparedData:
    """Every rank prepares the same data by itself, so that no rank waits for another's tokenising in a collective."""
    data = prepare_data(recipe.values["datasets"], tokenizer, **data_settings(recipe.values))
    if len(set(gather(data.report["fingerprint"]))) > 1:
        raise UserError("The ranks read different data: give all of them the same files (same content, same recipe).")
    if is_main():
        run.write(run.data_json, data.report)
    return data


def _tell(setup: Setup, source: ModelSource, data: PreparedData) -> None:
    arguments, precision = setup.arguments, setup.precision
    logger.info("Run directory: %s", setup.run.path)
    logger.info("Base model: %s (%s)", setup.model_settings.model_name_or_path, source.label)
    logger.info("Precision: %s%s", describe(precision), f"; {precision.why}" if precision.why else "")
    logger.info(
        "Global batch: %d = %d a device × %d accumulated × %d processes",
        setup.global_batch_size,
        arguments.per_device_train_batch_size,
        arguments.gradient_accumulation_steps,
        arguments.world_size,
    )
    logger.info("%s", report_table(data.report))


def _stop_at_end_of_turn(model: Any, report: dict[str, Any]) -> list[int]:
    """Let generation stop at the token that ends a turn in the template: it is trained, so it must also be obeyed."""
    known = model.generation_config.eos_token_id
    ids = [known] if isinstance(known, int) else list(known or [])
    end = report.get("end_of_turn") or {}
    if end.get("token_id") is not None and end["token_id"] not in ids:
        ids.insert(0, end["token_id"])
        model.generation_config.eos_token_id = ids
        logger.info("Generation stops at %r too, the end of a turn in this template.", end.get("text"))
    return ids


def _record(setup: Setup, source: ModelSource, built: BuiltModel, **facts: Any) -> None:
    if not is_main():
        return
    record_run(
        setup.run,
        setup.recipe,
        base_model=source.identity(),
        hardware=setup.hardware,
        precision=setup.precision,
        world_size=setup.arguments.world_size,
        global_batch_size=setup.global_batch_size,
        trainable_parameters=built.trainable,
        total_parameters=built.total,
        **facts,
    )


def _manifest_facts(setup: Setup, source: ModelSource) -> dict[str, Any]:
    return {
        "recipe": setup.recipe.fingerprint(),
        "base_model": source.name_or_path,
        "seed": setup.arguments.seed,
        "world_size": setup.arguments.world_size,
    }


def _build_trainer(
    setup: Setup,
    source: ModelSource,
    tokenizer: PreTrainedTokenizerBase,
    data: PreparedData,
    built: BuiltModel,
    watchers: list[TrainerCallback],
) -> SupervisedTrainer:
    if data.eval is None:
        setup.arguments.eval_strategy = "no"
    keeper = CheckpointKeeper(
        level=setup.ours.verify_checkpoints,
        save_total_limit=setup.arguments.save_total_limit,
        extra=_manifest_facts(setup, source),
    )
    callbacks: list[TrainerCallback] = [EventLogCallback(), *watchers, keeper]
    return SupervisedTrainer(
        model=built.model,
        args=setup.arguments,
        data_collator=SupervisedCollator(pad_token_id=tokenizer.pad_token_id),
        train_dataset=data.train,
        eval_dataset=data.eval,
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def raise_if_stopped(trainer: Any) -> None:
    """Raise `CheckFailed` when a watcher or the checkpoint keeper ended the training."""
    for callback in trainer.callback_handler.callbacks:
        reason = getattr(callback, "tripped", None) or getattr(callback, "failed", None)
        if reason:
            raise CheckFailed(f"training was stopped at step {trainer.state.global_step}: {reason}")


def _save_result(trainer: SupervisedTrainer, setup: Setup, source: ModelSource) -> None:
    """Write adapter/ or model/ with tokenizer, template and generation config, and the manifest that proves it."""
    target = setup.run.model if setup.ours.method == "full" else setup.run.adapter
    trainer.save_model(str(target))
    if is_main():
        trainer.accelerator.unwrap_model(trainer.model).generation_config.save_pretrained(target)
        write_manifest(target, {**_manifest_facts(setup, source), "step": trainer.state.global_step})
    barrier()
