"""The result of a run whose last step is saved already, but not its result: the checkpoint's own files."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.ranks import is_main

# What only a resumed run needs; everything else beside it is what the Trainer's `save_model` wrote.
_FOR_RESUMING = re.compile(
    r"(optimizer|pytorch_model_fsdp)(_\d+|\.\w+)|scheduler\.pt|scaler\.pt|rng_state.*|trainer_state\.json|latest"
    r"|global_step\d+|zero_to_\w+\.py|manifest\.json|verified\.json"
)


@dataclass(frozen=True)
class SavedEnd:
    """Stands for a trainer where a result is saved: the model on all ranks is not the trained one, the files are."""

    trainer: Any
    checkpoint: Path

    @property
    def accelerator(self) -> Any:
        """The trainer's."""
        return self.trainer.accelerator

    @property
    def model(self) -> Any:
        """The trainer's."""
        return self.trainer.model

    @property
    def state(self) -> Any:
        """The trainer's."""
        return self.trainer.state

    def save_model(self, directory: str) -> None:
        """Copy what `Trainer.save_model` wrote into the checkpoint; rank 0."""
        if not is_main():
            return
        Path(directory).mkdir(parents=True, exist_ok=True)
        for path in sorted(self.checkpoint.iterdir()):
            if _FOR_RESUMING.fullmatch(path.name):
                continue
            if path.is_dir():
                shutil.copytree(path, Path(directory) / path.name, dirs_exist_ok=True)
            else:
                shutil.copy2(path, Path(directory) / path.name)


def has_plain_weights(checkpoint: Path) -> bool:
    """Whether whole tensors in safetensors are there; FSDP's sharded state dicts leave none."""
    return any(checkpoint.glob("model*.safetensors")) or any(checkpoint.glob("adapter_model.safetensors"))
