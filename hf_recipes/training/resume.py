"""Training from the start or from a checkpoint; a checkpoint of another set-up is told in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerState

from hf_recipes.callbacks.restore import restore_training_state, why_not_restorable
from hf_recipes.checkpoints.choose import resolve_resume
from hf_recipes.checkpoints.complete import OptimizerForm, optimizer_form
from hf_recipes.core.errors import UserError
from hf_recipes.core.events import event_log
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main, is_main
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.plan.layout import Layout
from hf_recipes.training.launched import run_layout
from hf_recipes.training.requeue import resume_request
from hf_recipes.training.same_batch import keep_global_batch
from hf_recipes.training.same_run import check_same_model
from hf_recipes.training.saved_end import SavedEnd, has_plain_weights

if TYPE_CHECKING:
    from hf_recipes.training.setup import Setup

# What torch and PEFT say when the tensors of a checkpoint do not fit the model or the optimizer.
_MISFITS = ("size mismatch", "state_dict", "parameter group", "checkpoint index")

_FORMS: dict[str, OptimizerForm] = {"fsdp": "fsdp", "zero1": "zero", "zero2": "zero", "zero3": "zero3"}
_WRITERS: dict[OptimizerForm, str] = {
    "plain": "one process or DDP",
    "fsdp": "FSDP",
    "zero": "ZeRO-1 or ZeRO-2",
    "zero3": "ZeRO-3",
    "pipeline": "a pipeline",
}
_STRATEGIES: dict[OptimizerForm, str] = {
    "plain": "ddp (or on one process)",
    "fsdp": "fsdp",
    "zero": "zero2 (or zero1)",
    "zero3": "zero3",
    "pipeline": "pp",
}

# What decides the shapes of an adapter, by PEFT's type: its name in adapter_config.json, and the recipe key that sets
# it.
_ADAPTER_SHAPE: dict[str, dict[str, str]] = {
    "LORA": {
        "r": "lora_r",
        "target_modules": "lora_target_modules",
        "target_parameters": "lora_target_parameters",
        "rank_pattern": "lora_rank_pattern",
        "lora_alpha": "lora_alpha",
        "alpha_pattern": "lora_alpha_pattern",
        "use_rslora": "use_rslora",
        "use_dora": "method",
        "modules_to_save": "lora_modules_to_save",
        "init_lora_weights": "init_lora_weights",
    },
    "PREFIX_TUNING": {"num_virtual_tokens": "num_virtual_tokens", "prefix_projection": "prefix_projection"},
    "IA3": {"target_modules": "ia3_target_modules", "feedforward_modules": "ia3_feedforward_modules"},
    "HF_RECIPES_BOTTLENECK": {
        "adapter_size": "adapter_size",
        "adapter_activation": "adapter_activation",
        "target_modules": "adapter_target_modules",
    },
}


def find_resume(setup: Setup, form: OptimizerForm | None = None) -> Path | None:
    """The checkpoint a run goes on from, None for a start: good, of the same model, and with the same global batch.
    To be called on every rank, before anything is loaded; it may change the accumulation in ``setup.arguments``.

    Args:
        setup: of the run.
        form: of the optimizer state that the run can read; by default as its launcher shards.

    Raises:
        UserError: see `resolve_resume`, `check_same_engine`, `check_same_model`, `keep_global_batch`.
    """
    request = resume_request(setup.recipe)
    checkpoint = from_main(lambda: resolve_resume(request, setup.run.path))
    check_same_engine(checkpoint, form or form_read_by(run_layout(setup.arguments)))
    check_same_model(setup.recipe, checkpoint)
    keep_global_batch(setup.recipe, setup.arguments, checkpoint)
    return checkpoint


def form_read_by(layout: Layout) -> OptimizerForm:
    """The form of optimizer state that a run of the Trainer writes and reads."""
    return _FORMS.get(layout.sharding, "plain") if layout.tensor == 1 else "plain"


def check_same_engine(checkpoint: Path | None, now: OptimizerForm) -> None:
    """Refuse an optimizer state in a form that the run's strategy cannot read; of DDP's, the Trainer would not even say
    so, and begin with a new optimizer.

    Args:
        checkpoint: None passes.
        now: what the run reads.

    Raises:
        UserError: it was written under another kind of strategy.
    """
    if checkpoint is None:
        return
    written = optimizer_form(checkpoint)
    if written != now:
        raise UserError(
            f"'{checkpoint}' was written under {_WRITERS[written]}, and {_WRITERS[now]} cannot read that optimizer "
            f"state: resume with strategy: {_STRATEGIES[written]}, or start anew with another output_dir."
        )


def check_resume(checkpoint: Path | None, model: Any, planned_steps: int, *, streamed: bool = False) -> None:
    """Refuse a checkpoint that this recipe cannot continue, before anything of the run is written over.

    Raises:
        UserError: its adapter has another shape than the recipe's, or no step is left to train and the result is there,
            or it stands in a later pass of a stream.
    """
    if checkpoint is None:
        return
    state = read_json(checkpoint / "trainer_state.json")
    step = int(state["global_step"])
    if step > planned_steps or (step == planned_steps and _result_step(checkpoint.parent) >= step):
        raise UserError(
            f"'{checkpoint}' is at step {step} of {planned_steps}, nothing is left to train: raise max_steps or "
            "num_train_epochs, or use the result."
        )
    if streamed and float(state.get("epoch") or 0) >= 1:
        raise UserError(
            f"streaming: '{checkpoint}' is in pass {int(state['epoch']) + 1} over its data, and the Trainer takes up a "
            "stream in its first pass only: prepare the data without streaming and start anew."
        )
    configs = getattr(model, "peft_config", None)
    if configs is None or not (checkpoint / "adapter_config.json").is_file():
        return
    before, now = read_json(checkpoint / "adapter_config.json"), configs["default"].to_dict()
    for name, key in {"peft_type": "method", **_ADAPTER_SHAPE.get(now["peft_type"].value, {})}.items():
        if _comparable(before.get(name)) != _comparable(now.get(name)):
            raise UserError(
                f"'{checkpoint}' was trained with {name} {_comparable(before.get(name))}, the recipe asks for "
                f"{_comparable(now.get(name))}: set {key} back, or start anew with another output_dir."
            )


def _comparable(value: Any) -> Any:
    """Lists and sets by content; nothing, an empty list and false alike."""
    return sorted(value) if isinstance(value, (list, tuple, set)) and value else value or None


def _result_step(directory: Path) -> int:
    """The step of the result in a run directory, -1 without one."""
    try:
        return int(read_json(RunDirectory(directory).result / "manifest.json")["step"])
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return -1


def train_from(trainer: Any, checkpoint: Path | None) -> Any:
    """Run `trainer.train`, resuming from `checkpoint` where there is one. One of the last step is only taken up, so
    that the result can be saved: the Trainer would train a step more.

    Returns:
        What saves the result: the trainer, or `SavedEnd`.

    Raises:
        UserError: the checkpoint's tensors do not fit this recipe's model (other rank, targets or method).
    """
    if checkpoint is not None and _is_at_end(trainer, checkpoint):
        return _take_up_end(trainer, checkpoint)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return trainer
    except ImportError as error:  # an optimizer of a package that is not there
        raise UserError(f"optim: {' '.join(str(error).split())}") from error
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if checkpoint is None or not any(sign in text for sign in _MISFITS):
            raise
        raise UserError(
            f"'{checkpoint}' does not fit this recipe's model: resume with the method, lora_r and targets it was "
            f"trained with, or start anew with another output_dir ({text[:200]})."
        ) from error


def _is_at_end(trainer: Any, checkpoint: Path) -> bool:
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    planned = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
    return state.global_step >= planned


def _take_up_end(trainer: Any, checkpoint: Path) -> Any:
    """Put the weights of the last step into the trainer's model, and the state it ended with; of a model that is
    sharded, which the Trainer does while it trains, leave the weights where they are."""
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    reason = why_not_restorable(trainer.model, None)
    if sharded:
        reason = None if has_plain_weights(checkpoint) else "the model is sharded, and the checkpoint too"
    if reason:
        raise UserError(
            f"'{checkpoint}' is of the last step, and its result cannot be saved without training, since {reason}: go "
            "on from the checkpoint before it (resume_from_checkpoint: PATH)."
        )
    if not sharded:
        restore_training_state(trainer.model, trainer.create_optimizer(), checkpoint)
    trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    sentence = f"All {trainer.state.global_step} steps were trained already: the result is saved from {checkpoint}."
    logger.info("%s", sentence)
    if is_main():
        event_log(trainer.args.output_dir).write("note", trainer.state.global_step, detector="resume", message=sentence)
    return SavedEnd(trainer, checkpoint) if sharded else trainer
