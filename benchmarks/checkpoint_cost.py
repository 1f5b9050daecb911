"""How long a checkpoint holds up the training: the Trainer's own save, what the keeper does at once, and what it does
beside the training, which it would have to wait for without a thread.

    python benchmarks/checkpoint_cost.py [OUTPUT_DIR]

A random model of SmolLM2-135M's shape, trained in full and with LoRA on few tokens; no save waits for the verification
of the one before. Needs 7 GB of disk and 4 GB of memory.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.probe import take_probe
from hf_recipes.core.events import read_events
from hf_recipes.core.versions import stack_versions
from hf_recipes.training.environment import use_all_cores

SAVES = 3
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


class Wait(TrainerCallback):
    """Lets each verification end before the next step, so that both are measured alone."""

    def __init__(self, keeper: CheckpointKeeper) -> None:
        self.keeper = keeper

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        while self.keeper._job is not None and not self.keeper._job.done:
            time.sleep(0.05)


def measure(output: Path, lora: bool) -> None:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
    if lora:
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"]
        model = get_peft_model(model, LoraConfig(r=16, target_modules=targets, task_type="CAUSAL_LM"))
    keeper = CheckpointKeeper(save_total_limit=1, trial_save=False)
    rows = [{"input_ids": list(range(8)), "labels": list(range(8))}] * 16
    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=1,
        max_steps=SAVES,
        save_steps=1,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Wait(keeper), keeper])
    own = stopwatch(trainer, "_save_checkpoint")
    trainer.train()
    assert keeper.failed is None, keeper.failed
    begin = time.perf_counter()
    take_probe(trainer.model)
    probe = time.perf_counter() - begin
    events = [event for event in read_events(output) if event["kind"] == "verify"]
    held = statistics.median(event["held_seconds"] for event in events)
    beside = statistics.median(event["seconds"] for event in events)
    save, size = statistics.median(own), events[-1]["bytes"] / 1e6
    print(f"{'LoRA' if lora else 'full'}, {size:.1f} MB: the Trainer's save {save:.2f} s")
    print(f"  verified before training goes on: {held + beside:.2f} s")
    print(f"  verified beside it: {held:.3f} s, {probe:.3f} s of them for the probe; in the thread {beside:.2f} s")


def stopwatch(owner: Any, method: str) -> list[float]:
    """Measure every call of a method; the seconds."""
    inner, seconds = getattr(owner, method), []

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - begin)

    setattr(owner, method, timed)
    return seconds


def main() -> None:
    use_all_cores()
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if parent:
        parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=parent))
    print(f"{torch.get_num_threads()} threads; {stack_versions()}")
    try:
        for lora in (False, True):
            measure(place / ("lora" if lora else "full"), lora)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
