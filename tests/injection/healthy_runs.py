"""Healthy runs of many kinds: not one of them may raise an alarm."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import make_tiny_llama
from transformers import default_data_collator
from trial_runs import VOCABULARY, Run, pretrained, sequences

PLAIN = sequences()


def _lora(**more: Any) -> Any:
    def build(seed: int) -> Any:
        from peft import LoraConfig, get_peft_model

        settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.05, **more}
        return get_peft_model(pretrained(seed), LoraConfig(**settings))

    return build


def _wide(seed: int) -> Any:
    return make_tiny_llama(VOCABULARY, seed=seed, hidden_size=64, intermediate_size=128, num_hidden_layers=3)


def _bf16(seed: int) -> Any:
    return make_tiny_llama(VOCABULARY, seed=seed).to(torch.bfloat16)


def _classifier(seed: int) -> Any:
    from transformers import LlamaForSequenceClassification

    config = make_tiny_llama(VOCABULARY).config
    config.num_labels, config.pad_token_id = 3, 2
    torch.manual_seed(seed)
    return LlamaForSequenceClassification(config)


def _class_rows(seed: int) -> Any:
    from datasets import Dataset

    rows = PLAIN(seed)
    return Dataset.from_list([{"input_ids": ids[:12], "labels": ids[0] % 3} for ids in rows["input_ids"]])


def _two_levels(seed: int) -> Any:
    """Half of the rows are random (they stay at ln V), half can be learned: batches differ much."""
    from datasets import concatenate_datasets

    return concatenate_datasets([sequences(200, noise=1.0)(seed), sequences(200, noise=0.0)(seed + 1)])


def _by_length(seed: int) -> Any:
    rows = sequences(400, lengths=(6, 60))(seed)
    return rows.select(sorted(range(len(rows)), key=lambda row: len(rows[row]["input_ids"])))


HEALTHY = [
    Run("full fine-tune, AdamW, cosine to a tenth", PLAIN),
    Run("LoRA", PLAIN, _lora(), {"learning_rate": 1e-2}),
    Run("LoRA, rank-stabilised, all linear layers", PLAIN, _lora(target_modules="all-linear", use_rslora=True)),
    Run("DoRA", PLAIN, _lora(use_dora=True), {"learning_rate": 1e-2}),
    Run("one row a batch", PLAIN, arguments={"per_device_train_batch_size": 1, "learning_rate": 1e-3}),
    Run("batches of 32", PLAIN, arguments={"per_device_train_batch_size": 32}),
    Run("four micro-batches a step", PLAIN, arguments={"gradient_accumulation_steps": 4}),
    Run("every step logged", PLAIN, arguments={"logging_steps": 1}),
    Run("no clipping", PLAIN, arguments={"max_grad_norm": 0.0}),
    Run("clipped hard", PLAIN, arguments={"max_grad_norm": 0.05}),
    Run("constant learning rate", PLAIN, arguments={"lr_scheduler_type": "constant", "lr_scheduler_kwargs": {}}),
    Run("linear to zero", PLAIN, arguments={"lr_scheduler_type": "linear", "lr_scheduler_kwargs": {}}),
    Run("long warm-up", PLAIN, arguments={"warmup_steps": 50}),
    Run(
        "warm-up, stable, decay",
        PLAIN,
        arguments={
            "lr_scheduler_type": "warmup_stable_decay",
            "lr_scheduler_kwargs": {"num_decay_steps": 30, "min_lr_ratio": 0.1},
        },
    ),
    Run(
        "restarts",
        PLAIN,
        arguments={"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3}},
    ),
    Run("SGD with momentum", PLAIN, arguments={"optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 3e-2}),
    Run("Adafactor", PLAIN, arguments={"optim": "adafactor", "learning_rate": 5e-3}),
    Run("8-bit AdamW", PLAIN, arguments={"optim": "adamw_bnb_8bit"}),
    Run("few rows, many epochs, no evaluation", sequences(24), arguments={"max_steps": 200}),
    Run("two batches an epoch, in order", sequences(16), arguments={"train_sampling_strategy": "sequential"}),
    Run("much noise in the answers", sequences(noise=0.4)),
    Run("no noise: the loss goes to its floor", sequences(noise=0.0), arguments={"max_steps": 300}),
    Run("two kinds of rows, two levels of loss", _two_levels),
    Run("sorted by length", _by_length, arguments={"train_sampling_strategy": "sequential", "max_steps": 100}),
    Run("length groups", sequences(400, lengths=(6, 60)), arguments={"train_sampling_strategy": "group_by_length"}),
    Run("evaluated, early enough", PLAIN, eval_rows=sequences(64), arguments={"max_steps": 100}),
    Run("saved often", PLAIN, arguments={"save_strategy": "steps", "save_steps": 25, "max_steps": 100}),
    Run("activation checkpointing", PLAIN, arguments={"gradient_checkpointing": True, "max_steps": 80}),
    Run("wider model", PLAIN, _wide, {"learning_rate": 2e-3}),
    Run("bf16 weights", PLAIN, _bf16, {"learning_rate": 2e-3, "max_steps": 100}),
    Run(
        "classifier in a plain Trainer",
        _class_rows,
        _classifier,
        {"max_steps": 120},
        trainer="plain",
        collator=default_data_collator,
    ),
    Run("plain Trainer", PLAIN, trainer="plain"),
    Run("trained on from a good start", PLAIN, arguments={"max_steps": 400, "learning_rate": 2e-3}),
]

HEALTHY_OF_TWO_RANKS = [
    Run("two ranks, full fine-tune", PLAIN),
    Run(
        "two ranks, LoRA, accumulation, evaluated and saved",
        PLAIN,
        _lora(),
        {"gradient_accumulation_steps": 2, "learning_rate": 1e-2, "save_strategy": "steps", "save_steps": 50},
        eval_rows=sequences(64),
    ),
    Run("two ranks, rows of very unequal length", sequences(400, lengths=(6, 60))),
]
