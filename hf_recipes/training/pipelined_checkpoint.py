"""A pipeline's checkpoint: the plain layout of weights, AdamW's states by name, and what else a resumed run needs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.trainer_callback import TrainerState
from transformers.trainer_pt_utils import safe_globals, set_rng_state_for_device

from hf_recipes.core.log import logger
from hf_recipes.core.ranks import barrier, from_main, is_main, rank
from hf_recipes.pipeline.optimizer_state import load_optimizer, save_optimizer
from hf_recipes.pipeline.saving import save_adapter, save_stages

if TYPE_CHECKING:
    from hf_recipes.training.pipelined_loop import PipelineLoop


def write_checkpoint(loop: PipelineLoop, tokenizer: Any) -> None:
    """Write ``checkpoint-N`` of the step that the loop is at; to be called on every rank."""
    directory = Path(loop.args.output_dir) / f"checkpoint-{loop.state.global_step}"
    save_model(loop, directory, tokenizer)
    save_optimizer(loop.optimizer, loop.built.trained(), directory)
    torch.save(_random_states(), directory / f"rng_state_{rank()}.pth")
    if is_main():
        torch.save(loop.scheduler.state_dict(), directory / "scheduler.pt")
        loop.state.save_to_json(str(directory / "trainer_state.json"))
    barrier()


def save_model(loop: PipelineLoop, directory: Path, tokenizer: Any) -> None:
    """Write weights, configs and tokenizer into `directory`, which is made; to be called on every rank."""
    built, ranks = loop.built, loop.engine.ranks
    from_main(lambda: directory.mkdir(parents=True, exist_ok=True))
    if built.peft_config:
        save_adapter(built.stage.model, ranks, directory)
    else:
        save_stages(built.stage.model.named_parameters(), ranks, directory, copy=built.copy)
    if is_main():
        if not built.peft_config:
            _save_config(built.stage.base, directory)
            built.generation_config.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    barrier()


def _save_config(model: Any, directory: Path) -> None:
    """As `save_pretrained` writes it."""
    config = model.config
    config.architectures = [type(model).__name__]
    config.dtype = next(iter(model.parameters())).dtype
    config.save_pretrained(directory)


def _random_states() -> dict[str, Any]:
    """As the Trainer keeps them."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state_all()
    return states


def _for_groups(schedule: dict[str, Any], groups: int) -> dict[str, Any]:
    """The state of a schedule for so many parameter groups, all of one rate: shards have groups of their own."""
    return {key: value[:1] * groups if isinstance(value, list) else value for key, value in schedule.items()}


def load_state(loop: PipelineLoop, checkpoint: Path) -> None:
    """Take up optimizer, schedule, place and random states of a checkpoint; weights are loaded with the stage.

    Raises:
        UserError: it was not written by a pipeline.
    """
    loop.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    load_optimizer(loop.optimizer, loop.built.trained(), checkpoint)
    with safe_globals():
        schedule = torch.load(checkpoint / "scheduler.pt", weights_only=True)
    loop.scheduler.load_state_dict(_for_groups(schedule, len(loop.optimizer.param_groups)))
    for group, rate in zip(loop.optimizer.param_groups, loop.scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    file = checkpoint / f"rng_state_{rank()}.pth"
    if not file.is_file():
        logger.warning("'%s' has no random state of this rank: dropout draws other numbers from here on.", checkpoint)
        return
    with safe_globals():
        states = torch.load(file, weights_only=True)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if torch.cuda.is_available() and "cuda" in states:
        set_rng_state_for_device("CUDA", torch.cuda, states, True)
