"""Bases, random adapters, and PEFT's in-memory merge to hold ours against."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_llama
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

WORDS = 64


def make_gpt2(width=32):
    """A random two-layer GPT-2: `Conv1D` layers, weights laid out (inputs, outputs), head tied to the embedding."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_embd=width, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    return GPT2LMHeadModel(config)


def save_base(directory: Path, model=None, *, dtype=torch.float32, **llama) -> Path:
    """Save a base model; by default the tiny Llama, untied."""
    model = model or make_tiny_llama(WORDS, **{"tied": False, **llama})
    model.to(dtype).save_pretrained(directory)
    return directory


def save_adapter(directory: Path, base: Path, *, resize: int | None = None, seed: int = 1, **lora) -> Path:
    """Put LoRA on `base`, make every trained value random, save it as training would."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    torch.manual_seed(seed)
    if resize:
        model.resize_token_embeddings(resize, mean_resizing=False)
    wrapped = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **{"r": 4, "lora_alpha": 8, **lora}))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                spread = 0.01 if "magnitude" in name else 0.05
                parameter.add_(torch.randn_like(parameter) * spread)
    wrapped.save_pretrained(directory)
    return directory


def save_ia3(directory: Path, base: Path, *, seed: int = 1, **ia3) -> Path:
    """As `save_adapter`, with (IA)³; by default on the layers PEFT's table has for the architecture."""
    torch.manual_seed(seed)
    wrapped = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype="auto"), IA3Config(task_type="CAUSAL_LM", **ia3)
    )
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    wrapped.save_pretrained(directory)
    return directory


def peft_merge(base: Path, adapter: Path, dtype="auto") -> dict[str, torch.Tensor]:
    """PEFT's own merge in memory: name → tensor."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    return PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict()


def live_logits(base: Path, adapter: Path, rows: int | None = None) -> torch.Tensor:
    """Logits of the unmerged adapter in fp32, on every word."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if rows:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return logits(PeftModel.from_pretrained(model, adapter))


def merged_logits(directory: Path) -> torch.Tensor:
    """Logits of a model directory, loaded by plain transformers."""
    return logits(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32))


def logits(model) -> torch.Tensor:
    ids = torch.arange(model.get_input_embeddings().weight.shape[0])[None] % 60
    with torch.inference_mode():
        return model.eval()(input_ids=ids).logits


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors in the safetensors files of a directory."""
    return {
        name: tensor for file in sorted(directory.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }


def change_tensors(directory: Path, change) -> None:
    """Rewrite an adapter's tensors through `change(dict)`."""
    file = directory / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def change_json(file: Path, **values) -> None:
    """Set keys of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def read(file: Path) -> dict:
    return json.loads(file.read_text())
