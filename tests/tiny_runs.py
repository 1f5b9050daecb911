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
