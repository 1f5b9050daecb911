"""Run under torchrun by `test_sharded_saves.py`: a strategy's run with a keeper, on two CPU ranks over gloo."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState
from checkpoint_helpers import lora_config, make_trainer, tiny_llama
from two_ranks import leave_group

from hf_recipes.checkpoints.keeper import CheckpointKeeper


def as_on_gpus() -> None:
    """Let accelerate shard over two CPU ranks: it does so for devices only."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    os.environ.pop("ACCELERATE_USE_CPU", None)
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)


def zero(stage: int) -> dict[str, Any]:
    return {
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_allow_untested_optimizer": True,
    }


def fsdp(state: str) -> dict[str, Any]:
    config = {"state_dict_type": state, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
    return {"fsdp": True, "fsdp_config": config}


STRATEGIES: dict[str, dict[str, Any]] = {
    "fsdp-full": fsdp("FULL_STATE_DICT"),
    "fsdp-sharded": fsdp("SHARDED_STATE_DICT"),
    "zero2": {"deepspeed": zero(2)},
    "zero3": {"deepspeed": zero(3)},
    "zero3-lora": {"deepspeed": zero(3)},
}


def train(output: Path, strategy: str) -> dict[str, Any]:
    AcceleratorState._reset_state()
    GradientState._reset_state()
    keeper = CheckpointKeeper()
    trainer = make_trainer(
        output,
        [keeper],
        model=tiny_llama(tie_word_embeddings=False, attention_dropout=0.0),
        lora=lora_config() if strategy.endswith("lora") else None,
        use_cpu=False,
        remove_unused_columns=False,
        save_steps=4,
        max_steps=4,
        **STRATEGIES[strategy],
    )
    trainer.train()
    return {"failed": keeper.failed, "step": trainer.state.global_step, "ranks": trainer.args.world_size}


def main(output: Path, strategies: list[str]) -> None:
    torch.set_num_threads(1)
    as_on_gpus()
    leave_group(output, {strategy: train(output / strategy, strategy) for strategy in strategies})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
