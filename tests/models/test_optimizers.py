"""bitsandbytes' optimizers on the CPU under the Trainer: they step, and a resumed run goes on where it stopped."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments
from transformers import Trainer

from hf_recipes.models.methods.lora import LoraSettings, attach_lora


@pytest.mark.parametrize("optim", ["adamw_8bit", "paged_adamw_8bit"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_an_eight_bit_optimizer_steps_saves_and_resumes(tmp_path, tokenizer, optim, method):
    ids = tokenizer("Please send 12 blue pens to Anna by March 3, thanks: 0123456789").input_ids
    rows = [{"input_ids": ids[start : start + 8], "labels": ids[start : start + 8]} for start in range(4)]

    def run(resume=None):
        # Tensors below 4,096 elements keep their states in fp32, so the matrices must not be too tiny: gate_proj has
        # 64 · 128 elements, its LoRA matrices at rank 64 as many and half as many.
        model = make_tiny_llama(len(tokenizer), hidden_size=64, intermediate_size=128)
        if method == "lora":
            model = attach_lora(model, LoraSettings(r=64, alpha=64, dropout=0.0, target_modules=["gate_proj"]))
        arguments = tiny_arguments(
            tmp_path, optim=optim, max_steps=6, per_device_train_batch_size=2, save_strategy="steps", save_steps=3,
            lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]

    trainer, losses = run()
    assert losses[-1] < losses[0] - 0.1
    states = [state["state1"].dtype for state in trainer.optimizer.state.values()]
    assert torch.uint8 in states
    resumed, again = run(str(tmp_path / "checkpoint-3"))
    assert again == losses  # the log of the first three steps comes from the checkpoint, the rest is trained anew
    for (name, first), (_, second) in zip(
        trainer.model.named_parameters(), resumed.model.named_parameters(), strict=True
    ):
        assert torch.equal(first, second), name
