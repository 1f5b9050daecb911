"""Run under torchrun by `test_epochs.py`: a Trainer reads a mixed stream, each rank writes which rows it was given."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from mixed_stream_rows import EPOCH_ROWS, mixture
from transformers import Trainer, TrainingArguments
from two_ranks import leave_group


class Recorder(torch.nn.Module):
    """Learns nothing and remembers the rows it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[int] = []

    def forward(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += row.tolist()
        return {"loss": self.weight.sum()}


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    return {"row": torch.tensor([row["input_ids"][0] for row in rows])}


def train(dataset: object, output_dir: str, batch: int, **settings: object) -> list[int]:
    model = Recorder()
    arguments = TrainingArguments(
        output_dir,
        per_device_train_batch_size=batch,
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        **settings,
    )
    Trainer(model, arguments, data_collator=collate, train_dataset=dataset).train()
    return model.seen


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    steps = 2 * EPOCH_ROWS // 4
    seen = train(mixture(), str(directory), batch=2, max_steps=steps)
    leave_group(directory, seen)
