"""A LoRA training step of `SupervisedTrainer` against that of TRL's `SFTTrainer`: same model, batches and precision.

    python benchmarks/training_step.py MODEL [--pairs 5] [--batch 4] [--length 128] [--supervised 0.4]
        [--dtype fp32]

Prints seconds a step for both, alternating, and the median of the paired ratios. Losses on each batch are compared too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from hf_recipes import SupervisedCollator, SupervisedTrainer, build_lora_model
from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.core.versions import stack_versions
from hf_recipes.models.precision import choose_precision, detect_hardware

# By how much the losses of a batch may differ, in nats: what the order of sums in each precision explains.
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=5, help="measured steps of each trainer (default 5)")
    parser.add_argument("--batch", type=int, default=4, help="rows a step (default 4)")
    parser.add_argument("--length", type=int, default=128, help="longest row in tokens; others are from half of it up")
    parser.add_argument("--supervised", type=float, default=0.4, help="share of each row that is trained (default 0.4)")
    parser.add_argument("--dtype", choices=TOLERANCE, default="fp32", help="of base and autocast (default fp32)")
    options = parser.parse_args()
    rows = random_rows(options.batch * (options.pairs + 1), options.length, options.supervised)
    ours = make_trainer(SupervisedTrainer, options, rows, attention_mask=False)
    theirs = make_trainer(SFTTrainer, options, rows, attention_mask=True)
    ratios, seconds = [], {"ours": [], "trl": []}
    for pair in range(options.pairs + 1):
        batch = [rows[index] for index in range(pair * options.batch, (pair + 1) * options.batch)]
        our_seconds, our_loss = step(ours, batch)
        their_seconds, their_loss = step(theirs, batch)
        assert abs(our_loss - their_loss) < TOLERANCE[options.dtype], (our_loss, their_loss)
        if pair:  # the first pair warms up
            seconds["ours"].append(our_seconds)
            seconds["trl"].append(their_seconds)
            ratios.append(their_seconds / our_seconds)
    print({name: round(statistics.median(values), 3) for name, values in seconds.items()}, "seconds a step, median")
    print(f"TRL / ours: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
    print(stack_versions())


def random_rows(count: int, length: int, supervised: float) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(count):
        size = int(torch.randint(length // 2, length + 1, (1,), generator=generator))
        ids = torch.randint(1000, 20000, (size,), generator=generator).tolist()
        start = round(size * (1 - supervised))
        rows.append({"input_ids": ids, "labels": [-100] * start + ids[start:]})
    return Dataset.from_list(rows)


def make_trainer(trainer_class: Any, options: argparse.Namespace, rows: Dataset, attention_mask: bool) -> Any:
    torch.manual_seed(0)
    hardware = detect_hardware()
    precision = choose_precision(
        "lora", hardware, dtype=canonical_dtype_name(options.dtype), bf16=options.dtype == "bf16"
    )
    model, _ = build_lora_model(options.model, dtype=options.dtype, dropout=0.0)
    arguments = SFTConfig(
        output_dir=tempfile.mkdtemp(),
        report_to="none",
        use_cpu=hardware.device == "cpu",
        bf16=precision.bf16,
        activation_checkpointing=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    collator = SupervisedCollator(pad_token_id=tokenizer.pad_token_id, return_attention_mask=attention_mask)
    trainer = trainer_class(
        model=model, args=arguments, train_dataset=rows, data_collator=collator, processing_class=tokenizer
    )
    trainer.create_optimizer()
    return trainer


def step(trainer: Any, rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds and loss of one forward, backward and optimizer step."""
    batch = trainer.data_collator(rows)
    items = (batch["labels"] != -100).sum()
    started = time.perf_counter()
    loss = trainer.training_step(trainer.model, dict(batch), items)
    # The same weights on both sides for every pair: the update is made, then its effect on the comparison is nil
    # because both trainers make the same one.
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return time.perf_counter() - started, loss.item()


if __name__ == "__main__":
    main()
