"""A tiny Trainer run with dropout and shuffled data, for the tests of this room and for the processes they start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


def tiny_llama(**overrides: Any) -> LlamaForCausalLM:
    """A random two-layer Llama of 64 words, with tied embeddings and dropout in attention."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            **{
                "vocab_size": 64,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 32,
                "tie_word_embeddings": True,
                "attention_dropout": 0.1,
                **overrides,
            }
        )
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Models this small only lose by threads, and much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LossRecorder(TrainerCallback):
    """Appends {"step", "loss"} to a file at every step and flushes it, so that a killed run keeps it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            with open(self.file, "a") as file:
                file.write(json.dumps({"step": state.global_step, "loss": kwargs["logs"]["loss"]}) + "\n")


def read_losses(file: Path) -> dict[int, float]:
    """Step → the loss of the last attempt that got there."""
    return {line["step"]: line["loss"] for line in map(json.loads, file.read_text().splitlines())}


def make_trainer(
    output_dir: Path,
    callbacks: list[TrainerCallback],
    *,
    lora: LoraConfig | None = None,
    model: torch.nn.Module | None = None,
    rows: int = 64,
    eval_rows: int = 0,
    **arguments: Any,
) -> Trainer:
    """A Trainer on the CPU: 64 random rows of 8 tokens, 4 a step, attention dropout 0.1, every loss logged."""
    model = model or tiny_llama()
    if lora:
        torch.manual_seed(1)
        model = get_peft_model(model, lora)
    tokens = torch.randint(3, 64, (rows, 8), generator=torch.Generator().manual_seed(0)).tolist()
    settings = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_steps": 1,
        "max_steps": 2,
        "report_to": "none",
        "disable_tqdm": True,
        **arguments,
    }
    data = [{"input_ids": row, "labels": row} for row in tokens]
    return Trainer(
        model=model,
        args=TrainingArguments(**settings),
        train_dataset=data,
        eval_dataset=data[:eval_rows] or None,
        callbacks=callbacks,
    )


def lora_config(**settings: Any) -> LoraConfig:
    return LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **settings)
