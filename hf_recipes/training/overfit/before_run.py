"""The overfit test of a run that is ready to train: on rank 0, while the others wait, or told why not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from hf_recipes.core.data_parallel import data_parallel_ranks
from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.events import event_log
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main, is_main, world_size
from hf_recipes.core.wrapped import base_of
from hf_recipes.models.placement import place, sharded_by
from hf_recipes.models.tokenizer import load_tokenizer
from hf_recipes.training.arguments import global_batch_size, total_steps
from hf_recipes.training.launched import run_layout
from hf_recipes.training.overfit.budget import SECONDS
from hf_recipes.training.overfit.check import SAMPLES, OverfitResult, RunFacts, overfit_test
from hf_recipes.training.overfit.tell import failure_sentence

if TYPE_CHECKING:
    from hf_recipes.training.build_run import BuiltRun
    from hf_recipes.training.setup import Setup

RESULT_NAME = "overfit.json"


def check_before_run(built: BuiltRun) -> None:
    """Test what the run is about to train; to be called on every rank, before the trainer wraps the model.

    The result goes into ``overfit.json`` and the event log. Left out on resume, and where the model is cut over ranks.

    Raises:
        CheckFailed: something is broken, on all ranks alike.
    """
    setup = built.setup
    samples = wanted_samples(setup.ours.overfit_check)
    if not samples:
        if is_main() and built.resume is None:  # of a failed start in the same directory
            (setup.run.path / RESULT_NAME).unlink(missing_ok=True)
        return
    if built.resume is not None:
        logger.info("Overfit test: left out, since the run resumes what it was made for.")
        return
    if how := _cut_by(setup):
        tell_left_out(how)
        return
    result = from_main(lambda: _tested(built, samples))
    if result is None:
        return
    if not result.ok:
        raise CheckFailed(failure_sentence(result.verdict))
    built.trainer.add_callback(_EventOfResult(result))


def tell_left_out(how: str) -> None:
    """Say that a run whose model is cut over ranks is not tested, and what to start instead."""
    logger.warning(
        "Overfit test: left out under %s, where no rank has the whole model: `hf-recipes overfit --config RECIPE` "
        "makes it on one device.",
        how,
    )


def wanted_samples(value: int | bool) -> int:
    """``overfit_check`` as a number of rows: off is 0, on the default."""
    return SAMPLES if value is True else int(value)


def run_overfit_test(built: BuiltRun, samples: int, seconds: float = SECONDS) -> OverfitResult:
    """Test a run that is built, in this process alone; see `overfit_test`."""
    setup, trainer = built.setup, built.trainer
    arguments = setup.arguments
    place(trainer.model, arguments.device)
    model = trainer.accelerator.unwrap_model(trainer.model)
    with _checkpointed(model, arguments):
        return overfit_test(
            model,
            built.data.train,
            trainer.data_collator,
            samples=samples,
            seconds=seconds,
            tokenizer=trainer.processing_class,
            own_template=_replaced_template(setup),
            run=_run_facts(trainer),
            autocast=trainer.accelerator.autocast,
            seed=arguments.seed,
            directory=setup.run.path,
        )


@contextmanager
def _checkpointed(model: Any, arguments: Any) -> Iterator[None]:
    """Within, activations are recomputed where the recipe asks for it, as the Trainer lets them be from its first step
    on."""
    base = base_of(model)
    if not arguments.activation_checkpointing or not hasattr(base, "activation_checkpointing_enable"):
        yield
        return
    base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        base.activation_checkpointing_disable()


def _tested(built: BuiltRun, samples: int) -> OverfitResult | None:
    """The test, told and recorded (rank 0); None where there is no memory for it."""
    run, device = built.setup.run, built.setup.arguments.device
    logger.info("Overfit test: up to %d rows, half a minute or a tenth of the run.", samples)
    try:
        result = run_overfit_test(built, samples)
    except torch.OutOfMemoryError:
        logger.warning("Overfit test: left out, %s has no memory for it beside the model.", device)
        return None
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    run.write(run.path / RESULT_NAME, result.as_dict())
    if result.ok:
        logger.log(logging.INFO if result.verdict.status == "passed" else logging.WARNING, "%s", result)
    else:  # told by how the run ends
        _write_event(run.path, result)
    return result


class _EventOfResult(TrainerCallback):
    """Writes the result into the event log once the attempt has begun that it belongs to.

    Events: "overfit" (`status`, `sentence`, `bound`, `seconds`, `causes`).
    """

    def __init__(self, result: OverfitResult) -> None:
        self._result = result

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if is_main():
            _write_event(Path(args.output_dir), self._result)


def _write_event(directory: Path, result: OverfitResult) -> None:
    verdict = result.verdict
    event_log(directory).write(
        "overfit",
        0,
        status=verdict.status,
        sentence=str(result),
        bound=verdict.bound,
        seconds=result.evidence.seconds,
        causes=[vars(cause) for cause in verdict.causes],
    )


def _cut_by(setup: Setup) -> str:
    """What leaves no rank with the whole model; empty where all have it."""
    layout = run_layout(setup.arguments)
    if layout.tensor > 1 or layout.context > 1:
        return f"strategy: {'tp' if layout.tensor > 1 else 'cp'}"
    return sharded_by(setup.arguments) or ""


def _replaced_template(setup: Setup) -> str | None:
    """The base's own chat template where the recipe replaces it."""
    values = setup.recipe.values
    if not values.get("chat_template_path"):
        return None
    own = load_tokenizer(
        values["model_name_or_path"],
        revision=values.get("model_revision"),
        trust_remote_code=bool(values.get("trust_remote_code")),
    )
    return str(own.chat_template) if own.chat_template else None


def _run_facts(trainer: Any) -> RunFacts:
    arguments, dataset = trainer.args, trainer.train_dataset
    steps = total_steps(len(dataset) if hasattr(dataset, "__len__") else 0, arguments)
    return RunFacts(
        learning_rate=arguments.learning_rate if "adam" in str(arguments.optim).lower() else None,
        steps=steps,
        rows=steps * global_batch_size(arguments) // data_parallel_ranks(arguments),
        micro_batch=min(8, arguments.per_device_train_batch_size),
        limit_seconds=arguments.ddp_timeout / 2 if world_size() > 1 else float("inf"),
    )
