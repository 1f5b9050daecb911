"""Trainer arguments for runs of a few steps on the CPU; import as `from tiny_runs import tiny_arguments`."""

from __future__ import annotations


def tiny_arguments(directory, **more):
    """`SFTConfig` for data prepared already: no saving, every step logged, rows in order, seed 0."""
    from trl import SFTConfig

    return SFTConfig(
        **{
            "output_dir": str(directory),
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "max_length": None,
            "dataset_kwargs": {"skip_prepare_dataset": True},
            "remove_unused_columns": False,
            "train_sampling_strategy": "sequential",  # trainers shuffle in ways of their own
            "disable_tqdm": True,
            "seed": 0,
            **more,
        }
    )


def tiny_rows(ids_below, count=12):
    """`count` rows of unequal length whose first third is not trained, of random ids from 3 up."""
    import torch
    from datasets import Dataset

    generator = torch.Generator().manual_seed(0)
    data = []
    for index in range(count):
        ids = torch.randint(3, ids_below, (6 + 2 * index,), generator=generator).tolist()
        data.append({"input_ids": ids, "labels": [-100] * (len(ids) // 3) + ids[len(ids) // 3 :]})
    return Dataset.from_list(data)


def train_tiny(model, rows, tokenizer, directory, *, resume=None, **arguments):
    """Train for eight steps of four rows, or as `arguments` say; the trainer."""
    from hf_recipes.data.batching.collate import SupervisedCollator
    from hf_recipes.training.trainer import SupervisedTrainer

    trainer = SupervisedTrainer(
        model=model,
        args=tiny_arguments(directory, **{"max_steps": 8, "per_device_train_batch_size": 4, **arguments}),
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer, *keys):
    """What a trainer logged of `keys` by step: the value of one key, a tuple of several."""
    logs = {log["step"]: tuple(log[key] for key in keys) for log in trainer.state.log_history if "loss" in log}
    return {step: values[0] for step, values in logs.items()} if len(keys) == 1 else logs
