"""AdamW's state of all stages in one folder, by the names of the parameters: another layout finds its parts there too.

The format is `torch.distributed.checkpoint`'s, which writes what several ranks hold alike once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from hf_recipes.core.errors import UserError

FOLDER = "optimizer_0"  # as FSDP's sharded states are called, which are in this format too
_STATES = ("step", "exp_avg", "exp_avg_sq")


def save_optimizer(optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter], checkpoint: Path) -> None:
    """Write the state of every trained parameter of this stage; to be called on every rank, after a step."""
    dcp.save(_flat(optimizer.state, named.items()), checkpoint_id=str(checkpoint / FOLDER))


def load_optimizer(optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter], checkpoint: Path) -> None:
    """Read the state of this stage's trained parameters; to be called on every rank.

    Raises:
        UserError: the checkpoint is not of a pipeline, or not of this model.
    """
    if not (checkpoint / FOLDER).is_dir():
        raise UserError(
            f"'{checkpoint}' was not written by a pipeline, so its optimizer state cannot be taken up: resume with the "
            "strategy it was written with, or start from its weights (model_name_or_path)."
        )
    for parameter in named.values():
        empty = {"step": torch.zeros(()), **{name: torch.zeros_like(parameter) for name in _STATES[1:]}}
        optimizer.state[parameter] = {name: empty[name] for name in _STATES}
    try:
        dcp.load(_flat(optimizer.state, named.items()), checkpoint_id=str(checkpoint / FOLDER))
    except dcp.CheckpointException as error:
        text = " ".join(str(error).split())[:200]
        raise UserError(f"'{checkpoint}' holds no optimizer state of this model ({text}).") from error


def _flat(state: Mapping[Any, Any], named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    return {f"{name}:{key}": state[parameter][key] for name, parameter in named for key in _STATES}
