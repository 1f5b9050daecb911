"""Real checkpoints, written once by a Trainer with a `CheckpointKeeper`; every test gets its own copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_helpers import lora_config, make_trainer, one_thread

from hf_recipes.checkpoints.keeper import CheckpointKeeper


@pytest.fixture(scope="session")
def written_full(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("full")
    with one_thread():
        make_trainer(output, [CheckpointKeeper()]).train()
    return output


@pytest.fixture(scope="session")
def written_lora(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("lora")
    with one_thread():
        make_trainer(output, [CheckpointKeeper()], lora=lora_config()).train()
    return output


@pytest.fixture(autouse=True)
def single_threaded():
    with one_thread():
        yield


@pytest.fixture
def full_run(written_full, tmp_path) -> Path:
    """Output directory with checkpoint-1 and checkpoint-2 of a full fine-tune."""
    return shutil.copytree(written_full, tmp_path / "run")


@pytest.fixture
def lora_run(written_lora, tmp_path) -> Path:
    """Output directory with checkpoint-1 and checkpoint-2 of a LoRA run."""
    return shutil.copytree(written_lora, tmp_path / "lora-run")
