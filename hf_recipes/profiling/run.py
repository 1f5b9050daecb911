"""Profile a recipe: its run set up as `train` does, for a few steps, with a recorder around the trainer's step."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from hf_recipes.checkpoints.preemption.guard import PreemptionGuard
from hf_recipes.core.cores import usable_cores
from hf_recipes.core.flops import training_flops
from hf_recipes.core.log import logger
from hf_recipes.core.matmul_weights import matmul_weights
from hf_recipes.core.peaks import find_peak
from hf_recipes.core.ranks import gather
from hf_recipes.data.batching.collate import length_grouped_order
from hf_recipes.data.batching.packing import sample_lengths
from hf_recipes.models.counts import count_parameters
from hf_recipes.profiling.batches import BatchFacts, total_work
from hf_recipes.profiling.export import export_trace, staging_path
from hf_recipes.profiling.facts import Profile, Setting, Throughput
from hf_recipes.profiling.matmuls import attention_calls, flops_by_dtype
from hf_recipes.profiling.phases import device_busy_share, dropout_share, phase_rows, top_operators
from hf_recipes.profiling.recorder import StepRecorder
from hf_recipes.profiling.trace import Trace
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.build_run import build_run
from hf_recipes.training.environment import use_all_cores
from hf_recipes.training.finish import raise_if_stopped
from hf_recipes.training.free_memory import free_bytes
from hf_recipes.training.rows import epoch_padding
from hf_recipes.training.setup import Setup, set_up

# Keys of a whole run that a profile has a way of its own for.
_REPLACED_KEYS = {
    "output_dir": "nothing is kept but what --output and --trace ask for",
    "max_steps": "--steps says how many are measured",
    "resume_from_checkpoint": "the steps start from the model",
}


def profile_recipe(recipe: Recipe, steps: int, directory: Path, trace_path: Path | None = None) -> Profile:
    """Train a recipe for a few steps, measure them, and throw the result away.

    Args:
        recipe: As for `train`; its evaluations, saves, reports and output directory are left out.
        steps: Timed steps, and as many traced ones.
        directory: Where the Trainer's log goes; the trace too, if `trace_path` is None.
        trace_path: Keep the trace there. Ranks above 0 put theirs into `directory`.

    Raises:
        UserError: wrong use, as `train` raises it; the trace cannot be written.
        CheckFailed: a watcher stopped the run.
    """
    use_all_cores()
    setup = set_up(_short(recipe, steps, directory))
    trainer = build_run(setup).trainer
    trainer.remove_callback(PreemptionGuard)  # there is nothing to save: a signal ends a profile as it ends any command
    rank = setup.arguments.process_index
    kept = trace_path if rank == 0 else None
    recorder = StepRecorder(steps)
    recorder.attach(trainer)
    try:
        trainer.train()
    finally:
        recorder.close()
    raise_if_stopped(trainer)
    staged = staging_path(kept, directory / f"trace.rank{rank}.json")
    return _profile(setup, trainer, recorder, export_trace(recorder.profiler, staged, kept), kept)


def _short(recipe: Recipe, steps: int, directory: Path) -> Recipe:
    if recipe.get("num_processes", 1) > 1 and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        logger.warning("num_processes: only this one process is profiled; start it with torchrun to see communication.")
    idle = [f"{key} ({how})" for key, how in _REPLACED_KEYS.items() if key in recipe.given and recipe.get(key)]
    if idle:
        logger.warning("Without effect on a profile: %s.", ", ".join(idle))
    return recipe.with_values(
        num_processes=None,
        output_dir=str(directory),
        max_steps=StepRecorder.needed_steps(steps),
        eval_strategy="no",
        eval_on_start=False,
        save_strategy="no",
        load_best_model_at_end=False,
        resume_from_checkpoint=None,
        report_to="none",
        disable_tqdm=True,
    )


def _profile(setup: Setup, trainer: Any, recorder: StepRecorder, trace: Trace, kept: Path | None) -> Profile:
    device = setup.hardware.device
    rows = phase_rows(trace, device, recorder.held_bytes)
    flops = flops_by_dtype(trace.ops)
    whole = sum(flops.values())
    calls, masked = attention_calls(trace.ops)
    batches = _flat(recorder.timed + recorder.traced)
    positions = sum(batch.positions for batch in batches)
    return Profile(
        recipe=setup.recipe.name,
        model=str(setup.model_settings.model_name_or_path),
        steps=recorder.steps,
        setting=_setting(setup, trainer, packed=any(batch.packed for batch in batches)),
        throughput=_throughput(trainer, recorder, trace, flops),
        phases=rows,
        operators=top_operators(trace),
        matmul_dtypes={dtype: count / whole for dtype, count in flops.items()},
        padding_share=1 - total_work(batches).tokens / positions,
        dropout_share=dropout_share(trace),
        attention_calls=calls,
        masked_attention_calls=masked,
        peak_bytes=_peak_bytes([row.peak_bytes for row in rows if row.peak_bytes is not None]),
        peak_resident_bytes=_peak_resident_bytes(),
        trace=str(kept) if kept else None,
    )


def _flat(steps: Iterable[Iterable[BatchFacts]]) -> list[BatchFacts]:
    return [batch for step in steps for batch in step]


def _throughput(trainer: Any, recorder: StepRecorder, trace: Trace, flops: dict[str, float]) -> Throughput:
    timed, traced = _flat(recorder.timed), _flat(recorder.traced)
    work, seconds = total_work(timed), recorder.seconds
    device = trainer.args.device.type
    peak = find_peak(device, next(iter(flops)))
    positions, traced_positions = (sum(batch.positions for batch in batches) for batches in (timed, traced))
    useful = training_flops(matmul_weights(trainer.accelerator.unwrap_model(trainer.model)), work) / seconds
    computed = sum(flops.values()) / traced_positions * positions / seconds
    threads_time = seconds * torch.get_num_threads()
    busy = device_busy_share(trace)
    return Throughput(
        step_seconds=seconds / recorder.steps,
        tokens=work.tokens / seconds,
        tokens_all_ranks=sum(gather(work.tokens / seconds)),
        supervised_tokens=work.supervised / seconds,
        positions=positions / seconds,
        useful_flops=useful,
        computed_flops=computed,
        peak_flops=peak.flops,
        peak_source=peak.source,
        mfu=useful / peak.flops,
        busy=min(1.0, recorder.cpu_seconds / threads_time) if busy is None else busy,
        tracer_slowdown=(recorder.traced_seconds / traced_positions) / (seconds / positions) - 1,
    )


def _setting(setup: Setup, trainer: Any, *, packed: bool) -> Setting:
    arguments, precision, hardware = setup.arguments, setup.precision, setup.hardware
    model = trainer.accelerator.unwrap_model(trainer.model)
    rates = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    streaming = bool(setup.recipe.get("streaming"))
    return Setting(
        device=hardware.device,
        device_name=torch.cuda.get_device_name() if hardware.device == "cuda" else f"{torch.get_num_threads()} threads",
        ranks=arguments.world_size,
        local_ranks=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        threads=torch.get_num_threads(),
        cores=usable_cores(),
        bf16_hardware=hardware.bf16,
        autocast="bfloat16" if precision.bf16 else "float16" if precision.fp16 else None,
        weights=precision.dtype,
        method=setup.ours.method,
        attention=str(model.config.get_text_config()._attn_implementation),
        checkpointing=bool(getattr(model, "is_activation_checkpointing", False)),
        dropout=max(rates, default=0.0),
        packing=packed,
        # A prefix needs a mask, and asked for without being there it was refused by the model.
        can_pack=packed or not (streaming or setup.ours.method == "prefix" or setup.recipe.get("packing")),
        streaming=streaming,
        sampling=str(arguments.train_sampling_strategy),
        grouped_padding_share=None
        if packed or streaming
        else epoch_padding(sample_lengths(trainer.train_dataset), length_grouped_order, arguments),
        micro_batch=arguments.per_device_train_batch_size,
        accumulation=arguments.gradient_accumulation_steps,
        workers=arguments.dataloader_num_workers,
        optimizer=str(getattr(arguments.optim, "value", arguments.optim)),
        fused_optimizer=bool(getattr(optimizer, "defaults", {}).get("fused")),
        trained_parameters=count_parameters(model)[0],
        free_bytes=free_bytes(arguments.device),
    )


def _peak_bytes(phases: list[int]) -> int:
    """On a GPU over the whole run, by its allocator; on a CPU over the traced steps."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else max(phases, default=0)


def _peak_resident_bytes() -> int:
    """The most memory this process ever held resident, 0 where the system does not tell (Windows)."""
    if os.name == "nt":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
