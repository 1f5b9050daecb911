"""Runs of a tiny recipe that are broken off and resumed, on one rank or several; what each step met and what it gave.

Import as `from resumed_runs import …`; under torchrun (`two_rank_resume.py`) it is the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hf_recipes.training.run as run_module
from hf_recipes.core.events import read_events
from hf_recipes.core.ranks import from_main
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.trainer import SupervisedTrainer

# 41 domain rows and 7 general ones: 6 steps of 8 rows an epoch, 10 steps in all.
RECIPE = """
model_name_or_path: {model}
overfit_check: off
datasets:
  - path: {directory}/domain.jsonl
  - path: {directory}/general.jsonl
    role: general
learning_rate: 1.0e-2
per_device_train_batch_size: 4
max_steps: 10
save_steps: 4
eval_share: 0
lora_r: 4
logging_steps: 1
disable_tqdm: true
"""
# Random states of several ranks are not those of one: numbers are compared without them.
NO_DROPOUT = ("--lora_dropout", "0")


def write_recipe(directory: Path, model: Path) -> Path:
    """A recipe with its two files, in `directory`."""
    domain = [
        {"prompt": f"Say {i}", "completion": f"The number is {i * 7 % 10}, not {'x' * (i % 9)}."} for i in range(41)
    ]
    general = [
        {"messages": [{"role": "user", "content": f"hi {i}"}, {"role": "assistant", "content": f"Hello {i * 3}!"}]}
        for i in range(20)
    ]
    for name, rows in (("domain", domain), ("general", general)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "recipe.yaml").write_text(RECIPE.format(model=model, directory=directory))
    return directory / "recipe.yaml"


@contextmanager
def recorded_batches() -> Iterator[list[list[str]]]:
    """The rows of each micro-batch that is trained on here, as text that tells them apart."""
    met: list[list[str]] = []
    original = SupervisedTrainer.training_step

    def training_step(self: Any, model: Any, inputs: dict[str, Any], *more: Any) -> Any:
        rows = zip(inputs["input_ids"].tolist(), inputs["labels"].tolist(), strict=True)
        met.append(
            [str([token for token, label in zip(ids, labels, strict=True) if label >= 0]) for ids, labels in rows]
        )
        return original(self, model, inputs, *more)

    SupervisedTrainer.training_step = training_step
    try:
        yield met
    finally:
        SupervisedTrainer.training_step = original


def train(recipe: Path, output: Path, *keys: str) -> dict[int, tuple[float, float]]:
    """Run a recipe; step → (loss, gradient norm), the last attempt that got there."""
    with plain_and_slim():
        run_module.train(load_recipe(str(recipe), ["--output_dir", str(output), *keys]))
    return numbers(output)


@contextmanager
def plain_and_slim() -> Iterator[None]:
    """No report at the end, and one thread: models this small only lose by more, and much on a busy machine."""
    kept = run_module.write_last_report, run_module.use_all_cores
    run_module.write_last_report, run_module.use_all_cores = (lambda run: None), (lambda: None)
    try:
        yield
    finally:
        run_module.write_last_report, run_module.use_all_cores = kept


def resume(recipe: Path, whole: Path, step: int, *keys: str) -> dict[int, tuple[float, float]]:
    """Take up a copy of the run `whole`, as if it had been killed after it saved at `step`."""
    broken = whole.with_name(f"{whole.name}-from-{step}")
    from_main(lambda: cut_off(whole, broken, step))
    return train(recipe, broken, "--resume_from_checkpoint", "last", *keys)


def cut_off(whole: Path, broken: Path, step: int) -> None:
    """Copy a run as it was when `step` had been saved."""
    shutil.copytree(whole, broken, ignore=shutil.ignore_patterns("adapter", "model", "events*", "status.json"))
    for checkpoint in broken.glob("checkpoint-*"):
        if int(checkpoint.name.split("-")[1]) > step:
            shutil.rmtree(checkpoint)


def numbers(output: Path) -> dict[int, tuple[float, float]]:
    """Step → (loss, gradient norm), the last attempt that got there."""
    logs = [event for event in read_events(output) if event["kind"] == "log" and "loss" in event]
    return {event["step"]: (event["loss"], event["grad_norm"]) for event in logs}
