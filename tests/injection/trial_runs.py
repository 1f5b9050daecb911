"""Real runs for the trials of the watchers: tiny models, tasks that can be learned, every watcher of a recipe on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tiny_models import make_tiny_llama
from transformers import TrainerCallback

from hf_recipes.callbacks.build import build_watchers
from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.core.events import read_events
from hf_recipes.data.batching.collate import SupervisedCollator

VOCABULARY = 64
FIRST_TOKEN = 4


@dataclass(frozen=True)
class Run:
    """One kind of run. `model` and `rows` are made from the seed; `arguments` go to `SFTConfig`.

    `callbacks` are put before the watchers, where a fault does its work.
    """

    name: str
    rows: Callable[[int], Any]
    model: Callable[[int], Any] = lambda seed: make_tiny_llama(VOCABULARY, seed=seed)
    arguments: dict[str, Any] = field(default_factory=dict)
    watch: dict[str, Any] = field(default_factory=dict)
    eval_rows: Callable[[int], Any] | None = None
    callbacks: Callable[[], list[TrainerCallback]] = list
    trainer: str = "supervised"
    collator: Any = field(default_factory=lambda: SupervisedCollator(pad_token_id=2))


def train(run: Run, directory: Path, seed: int, *, resume: str | None = None) -> Any:
    """Train one run with all watchers; the trainer."""
    from tiny_runs import tiny_arguments
    from transformers import Trainer

    from hf_recipes.training.trainer import SupervisedTrainer

    arguments = tiny_arguments(
        directory,
        **{
            "max_steps": 150,
            "per_device_train_batch_size": 8,
            "learning_rate": 5e-3,
            "warmup_steps": 5,
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
            "train_sampling_strategy": "random",
            "logging_steps": 10,
            "seed": seed,
            **({"eval_strategy": "steps", "eval_steps": 10} if run.eval_rows else {}),
            **run.arguments,
        },
    )
    kind = {"supervised": SupervisedTrainer, "plain": Trainer}[run.trainer]
    trainer = kind(
        model=run.model(seed),
        args=arguments,
        data_collator=run.collator,
        train_dataset=run.rows(seed),
        eval_dataset=run.eval_rows(seed) if run.eval_rows else None,
        callbacks=[*run.callbacks(), *build_watchers(run.watch), EventLogCallback()],
        **({"processing_class": _NoTokenizer()} if run.trainer == "supervised" else {}),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def alarms(directory: Path) -> list[tuple[int, str, str]]:
    """Step, detector and verdict of every alarm, in order."""
    return [
        (event["step"], event["detector"], str(event.get("verdict", event.get("what", ""))))
        for event in read_events(directory)
        if event["kind"] == "alarm"
    ]


def best_evaluation(directory: Path) -> int:
    """The step of the lowest evaluation loss."""
    losses = {event["step"]: event["eval_loss"] for event in read_events(directory) if "eval_loss" in event}
    return min(losses, key=lambda step: losses[step])


def sequences(
    count: int = 400,
    *,
    noise: float = 0.2,
    lengths: tuple[int, int] = (12, 24),
    classes: int = 6,
    answer: Callable[[random.Random, list[int]], list[int]] | None = None,
) -> Callable[[int], Any]:
    """Rows whose answer counts on from the prompt's last token by a step of its own; `noise` of it is random."""

    def make(seed: int) -> Any:
        from datasets import Dataset

        source = random.Random(seed)
        span = VOCABULARY - FIRST_TOKEN
        rows = []
        for number in range(count):
            length = source.randint(*lengths)
            prompt = [source.randrange(span) for _ in range(4)]
            stride = 1 + prompt[0] % classes
            made = answer(source, prompt) if answer else [prompt[-1] + stride * place for place in range(1, length)]
            made = [source.randrange(span) if source.random() < noise else token for token in made]
            ids = [FIRST_TOKEN + token % span for token in [*prompt, *made]]
            labels = [-100] * len(prompt) + ids[len(prompt) :]
            rows.append({"input_ids": ids, "labels": labels, "source": "trial", "row_id": f"trial:{number}"})
        return Dataset.from_list(rows)

    return make


def pretrained(seed: int) -> Any:
    """A model that has learned the task of `sequences` from other rows: an adapter on random weights learns nothing."""
    model = make_tiny_llama(VOCABULARY, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    rows = sequences(512, lengths=(16, 16))(seed + 100)
    ids, labels = torch.tensor(rows["input_ids"]), torch.tensor(rows["labels"])
    for step in range(160):
        chosen = slice(step % 8 * 64, step % 8 * 64 + 64)
        model(input_ids=ids[chosen], labels=labels[chosen]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


class _NoTokenizer:
    """What `SFTTrainer` asks of a tokenizer for data that are tokenised already."""

    def __new__(cls) -> Any:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        words = {str(number): number for number in range(VOCABULARY)}
        raw = Tokenizer(models.WordLevel(words, unk_token="3"))
        return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="2", eos_token="2", bos_token="1", unk_token="3")
