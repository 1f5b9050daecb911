"""A fine-tuning run whose ranks hold the stages of a pipeline: a recipe with ``strategy: pp`` from start to result.

The Trainer has no pipeline; this composes the rooms as `training.run` does, around a loop of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, set_seed
from transformers.trainer_pt_utils import get_parameter_names

from hf_recipes.callbacks.config import WatchConfig
from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.lock import only_writer
from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import barrier, from_main, is_main
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.data.batching.collate import (
    SupervisedCollator,
    length_grouped_order,
    padding_share,
    shuffled_order,
)
from hf_recipes.data.batching.packing import sample_lengths
from hf_recipes.data.prepare import PreparedData
from hf_recipes.data.report import report_table
from hf_recipes.models.source import ModelSource
from hf_recipes.pipeline.cut import check_micro_batches
from hf_recipes.pipeline.engine import PipelineEngine
from hf_recipes.pipeline.ranks import PipelineRanks, arrange_ranks
from hf_recipes.plan.strategy.names import layout_of
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.report.live import ReportCallback
from hf_recipes.training.arguments import global_batch_size, order_seed, total_steps
from hf_recipes.training.environment import check_world_size, use_all_cores
from hf_recipes.training.finish import raise_if_stopped, write_cards
from hf_recipes.training.launched import node_count
from hf_recipes.training.output import record_run, recorded_end, write_last_report
from hf_recipes.training.pipelined_checkpoint import load_state, save_model, write_checkpoint
from hf_recipes.training.pipelined_keys import check_pipeline_keys, tell_absent
from hf_recipes.training.pipelined_loop import LoopData, PipelineLoop
from hf_recipes.training.pipelined_stage import BuiltStage, build_stage
from hf_recipes.training.preempting import find_guard, raise_if_preempted, recipe_guard
from hf_recipes.training.resume import check_resume, find_resume
from hf_recipes.training.rows import longest_row
from hf_recipes.training.run_data import eval_parts, prepare, stop_at_end_of_turn
from hf_recipes.training.setup import Setup, set_up, tell_setup
from hf_recipes.training.strategy_file import recipe_sizes
from hf_recipes.training.watching import explained_ends

if TYPE_CHECKING:
    from datasets import Dataset


_ORDERS: dict[str, Callable[[np.ndarray, int, int, int], np.ndarray]] = {
    "random": shuffled_order,
    "group_by_length": length_grouped_order,
    "sequential": lambda lengths, batch, seed, epoch: np.arange(len(lengths)),
}


class PipelinesAsRanks:
    """The Trainer's arguments as a pipeline counts them: its world is the pipelines, since the ranks of one see the
    same rows. All else is read from the arguments themselves; what is set here stays here."""

    def __init__(self, arguments: Any, world_size: int) -> None:
        self._arguments, self.world_size = arguments, world_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._arguments, name)


def train(recipe: Recipe) -> RunDirectory:
    """Train a recipe by a pipeline and leave a run directory with its result, verified; to be called on every rank.

    Raises:
        UserError: wrong use, on all ranks alike.
        CheckFailed: the training was stopped, or a checkpoint did not verify.
    """
    check_pipeline_keys(recipe)
    use_all_cores()
    setup = set_up(recipe)
    with only_writer(setup.run.path), recorded_end(setup.run.path) as end:
        _train(setup, end)
    if is_main():
        write_last_report(setup.run)
    barrier()
    return setup.run


def _train(setup: Setup, end: dict[str, Any]) -> None:
    world = int(setup.arguments.world_size)
    check_world_size(setup.ours.num_processes, world)
    layout = layout_of("pp", world, node_count(world), recipe_sizes(setup.ours))
    ranks = arrange_ranks(layout.pipeline, layout.tensor, setup.arguments.device.type)
    setup = replace(setup, arguments=PipelinesAsRanks(setup.arguments, ranks.replicas))
    resume = find_resume(setup, "pipeline")
    arguments = setup.arguments
    check_micro_batches(setup.ours.pipeline_schedule, arguments.gradient_accumulation_steps, ranks.stages)
    guard = recipe_guard(setup)
    set_seed(arguments.seed)
    source, tokenizer = setup.load_tokenizer()
    data = prepare(setup, tokenizer, resume)
    tell_setup(setup, source, report_table(data.report))
    tell_absent(setup.recipe)
    longest = longest_row(data.train, setup.recipe)
    built = build_stage(setup, source, tokenizer, ranks, longest_row=longest, resume=resume)
    check_resume(resume, built, total_steps(len(data.train), arguments))
    assert isinstance(data, PreparedData)  # streams are refused
    _record(setup, source, built, data.report, world, ranks)
    # Replicas and stages draw other numbers; shards of a layer the same.
    torch.manual_seed(arguments.seed + ranks.replica * ranks.stages + ranks.stage)
    loop = _build_loop(setup, source, tokenizer, built, data, ranks, guard)
    if resume is not None:
        load_state(loop, resume)
    _train_and_save(loop, setup, source, tokenizer, end)


def _record(
    setup: Setup, source: ModelSource, built: BuiltStage, report: dict[str, Any], world: int, ranks: PipelineRanks
) -> None:
    """Say what is trained, and write run.json (rank 0)."""
    trained, total = built.counts
    logger.info("Training %s of %s parameters (%.2f %%).", f"{trained:,}", f"{total:,}", 100 * trained / total)
    stop_ids = stop_at_end_of_turn(built, report)
    if is_main():
        record_run(
            setup.run,
            setup.recipe,
            base_model=source.identity(),
            hardware=setup.hardware,
            precision=setup.precision,
            world_size=world,
            global_batch_size=global_batch_size(setup.arguments),
            trainable_parameters=trained,
            total_parameters=total,
            task="causal_lm",
            end_of_turn_token_ids=stop_ids,
            pipeline={
                "stages": ranks.stages,
                "replicas": ranks.replicas,
                "shards": ranks.shards,
                "schedule": setup.ours.pipeline_schedule,
            },
        )


def _build_loop(
    setup: Setup,
    source: ModelSource,
    tokenizer: Any,
    built: BuiltStage,
    data: PreparedData,
    ranks: PipelineRanks,
    guard: TrainerCallback,
) -> PipelineLoop:
    arguments, ours = setup.arguments, setup.ours
    micro_batches, rows = arguments.gradient_accumulation_steps, arguments.per_device_train_batch_size
    engine = PipelineEngine(built.stage, ranks, ours.pipeline_schedule, micro_batches, rows, arguments.device)
    order = _order(data.train, arguments)
    _tell_padding(data.train, order, micro_batches * rows, rows)
    parts = eval_parts(data) or {}
    progress = PrinterCallback() if arguments.disable_tqdm else ProgressCallback()
    callbacks: list[TrainerCallback] = [EventLogCallback(), guard, _keeper(setup, source), progress]
    if WatchConfig.from_dict(ours.watch).live_report:
        callbacks.append(ReportCallback())
    return PipelineLoop(
        args=arguments,
        built=built,
        engine=engine,
        data=LoopData(
            data.train,
            parts if isinstance(parts, dict) else {"": parts},
            order,
            SupervisedCollator(pad_token_id=tokenizer.pad_token_id),
        ),
        optimizer=_optimizer(built, arguments),
        callbacks=callbacks,
        write=partial(write_checkpoint, tokenizer=tokenizer),
    )


def _order(train: Dataset, arguments: Any) -> Callable[[int], np.ndarray]:
    order, lengths = _ORDERS[str(arguments.train_sampling_strategy)], sample_lengths(train)
    return lambda epoch: order(lengths, global_batch_size(arguments), order_seed(arguments), epoch)


def _tell_padding(train: Dataset, order: Callable[[int], np.ndarray], step_rows: int, rows: int) -> None:
    """What one shape for all micro-batches of a step costs."""
    lengths = sample_lengths(train)[order(0)]
    one, each = padding_share(lengths, step_rows), padding_share(lengths, rows)
    logger.info(
        "%.0f %% of the tokens computed are padding, since the micro-batches of a step have one length (%.0f %% if "
        "each had its own).",
        100 * one,
        100 * each,
    )


def _keeper(setup: Setup, source: ModelSource) -> CheckpointKeeper:
    level = setup.ours.verify_checkpoints
    if level == "reload":
        logger.info("verify_checkpoints: content; no rank holds the whole model to compare with.")
        level = "content"
    facts = setup.manifest_facts(source)
    return CheckpointKeeper(level, setup.arguments.save_total_limit, facts, setup.ours.trial_save)


def _optimizer(built: BuiltStage, arguments: Any) -> torch.optim.Optimizer:
    """AdamW as the Trainer makes it: norms and biases without decay, and shards apart from whole parameters, which one
    fused update cannot take together."""
    from torch.distributed.tensor import DTensor

    trained = built.trained()
    norms = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    decayed = set(get_parameter_names(built.stage.model, [torch.nn.LayerNorm], norms))
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    for name, each in trained.items():
        groups.setdefault((name in decayed, isinstance(each, DTensor)), []).append(each)
    kind, settings = Trainer.get_optimizer_cls_and_kwargs(arguments)
    decay = arguments.weight_decay
    optimizer: torch.optim.Optimizer = kind(
        [{"params": each, "weight_decay": decay if is_decayed else 0.0} for (is_decayed, _), each in groups.items()],
        **settings,
    )
    return optimizer


def _train_and_save(loop: PipelineLoop, setup: Setup, source: ModelSource, tokenizer: Any, end: dict[str, Any]) -> None:
    try:
        with explained_ends(setup.arguments):
            loop.train()
        raise_if_stopped(loop)
        raise_if_preempted(loop, setup.ours.verify_checkpoints != "off")
        _save_result(loop, setup, source, tokenizer)
        from_main(lambda: write_cards(setup.run))
    finally:
        end["last_step"] = loop.state.global_step
        if guard := find_guard(loop):
            guard.close()
    end["sentence"] = f"finished {loop.state.global_step} steps"


def _save_result(loop: PipelineLoop, setup: Setup, source: ModelSource, tokenizer: Any) -> None:
    """Write model/ or adapter/, its manifest, and verify it.

    Raises:
        CheckFailed: on all ranks, when it does not verify.
    """
    target: Path = setup.run.adapter if loop.built.peft_config else setup.run.model
    save_model(loop, target, tokenizer)
    facts = {**setup.manifest_facts(source), "step": loop.state.global_step}

    def finish() -> None:
        loop.built.generation_config.save_pretrained(target)
        write_manifest(target, facts)
        report = verify_checkpoint(target)
        if not report.ok:
            raise CheckFailed(f"the result in '{target}' is damaged: {report.problems[0]}")

    from_main(finish)
