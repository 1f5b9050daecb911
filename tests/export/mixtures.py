"""Tiny mixtures of experts, and adapters on them with random values, for the tests of the merge."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from export_helpers import WORDS
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

COMMON = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
FAMILIES = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 24, "head_dim": 8},
    "GptOss": {"num_local_experts": 4, "head_dim": 8},
    "GraniteMoe": {"num_local_experts": 4},
}
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


def make_mixture(family: str = "Mixtral", **settings):
    """A random two-layer mixture of four experts in fp32."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **FAMILIES[family], **settings})
    return getattr(transformers, f"{family}ForCausalLM")(config)


def train_at_random(wrapped, directory: Path, spread: float = 0.05) -> Path:
    """Give an adapter random values and save it."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * spread)
    wrapped.save_pretrained(directory)
    return directory


def save_lora(directory: Path, base: Path, **lora) -> Path:
    """A random LoRA on `base`."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    config = LoraConfig(task_type="CAUSAL_LM", **{"r": 2, "lora_alpha": 8, **lora})
    return train_at_random(get_peft_model(model, config), directory)


def save_peft_merge(directory: Path, base: Path, adapter: Path) -> Path:
    """What PEFT merges in memory, saved by transformers under the names it gives a checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(directory)
    return directory
