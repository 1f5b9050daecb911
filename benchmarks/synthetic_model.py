"""A random Llama of any size on disk, with a random adapter, written tensor by tensor: no more memory than one tensor.

    python benchmarks/synthetic_model.py DIR [--size 1.5b|7b|tiny] [--shard-size 500MB]

makes DIR/base (bf16 safetensors, tokenizer of SmolLM2 where it is at hand), DIR/lora-qv and DIR/lora-all (rank 16).
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from hf_recipes.core.tensors import SafetensorsWriter, TensorSpec, tensor_bytes
from hf_recipes.export.shards import parse_size, shard_names

SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "heads": (4, 2), "vocab_size": 256},
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "heads": (9, 3),
        "vocab_size": 49152,
    },
    "1.5b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "heads": (16, 8),
        "vocab_size": 49152,
    },
    "7b": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "heads": (32, 32),
        "vocab_size": 32000,
    },
}
TARGETS = {
    "qv": ("q_proj", "v_proj"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
RANK = 16


def shapes_of(size: dict) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama, by checkpoint name, in the order in which `save_pretrained` writes them."""
    hidden, inner, words = size["hidden_size"], size["intermediate_size"], size["vocab_size"]
    heads, groups = size["heads"]
    narrow = hidden // heads * groups
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (words, hidden),
        "model.embed_tokens.weight": (words, hidden),
    }
    for layer in range(size["num_hidden_layers"]):
        here = f"model.layers.{layer}"
        shapes |= {
            f"{here}.input_layernorm.weight": (hidden,),
            f"{here}.mlp.down_proj.weight": (hidden, inner),
            f"{here}.mlp.gate_proj.weight": (inner, hidden),
            f"{here}.mlp.up_proj.weight": (inner, hidden),
            f"{here}.post_attention_layernorm.weight": (hidden,),
            f"{here}.self_attn.k_proj.weight": (narrow, hidden),
            f"{here}.self_attn.o_proj.weight": (hidden, hidden),
            f"{here}.self_attn.q_proj.weight": (hidden, hidden),
            f"{here}.self_attn.v_proj.weight": (narrow, hidden),
        }
    return shapes | {"model.norm.weight": (hidden,)}


def write_base(directory: Path, size: dict, max_shard_bytes: int) -> None:
    """Weights, index and config."""
    directory.mkdir(parents=True)
    shapes = shapes_of(size)
    shards = list(_divided(shapes, max_shard_bytes))
    weight_map, total = {}, 0
    generator = torch.Generator().manual_seed(0)
    for file, names in zip(shard_names(len(shards)), shards, strict=True):
        specs = [TensorSpec(name, "BF16", shapes[name]) for name in names]
        with SafetensorsWriter(directory / file, specs, {"format": "pt"}) as writer:
            for spec in writer.specs:
                writer.write(spec.name, tensor_bytes(_random(spec.shape, generator)))
                total += spec.nbytes
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    heads, groups = size["heads"]
    config = {key: value for key, value in size.items() if key != "heads"} | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))


def _divided(shapes: dict[str, tuple[int, ...]], max_bytes: int) -> Iterator[list[str]]:
    names: list[str] = []
    filled = 0
    for name, shape in shapes.items():
        size = TensorSpec(name, "BF16", shape).nbytes
        if names and filled + size > max_bytes:
            yield names
            names, filled = [], 0
        names.append(name)
        filled += size
    yield names


def _random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values of a trained model's size; a thousandth is drawn and repeated with other signs, for speed."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    drawn = torch.randn(1_000_003, generator=generator) * 0.02
    count = shape[0] * shape[1]
    return drawn.repeat(count // len(drawn) + 1)[:count].reshape(shape).bfloat16()


def write_adapter(directory: Path, base: Path, size: dict, targets: tuple[str, ...]) -> None:
    """A LoRA adapter as PEFT saves it, in fp32."""
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    specs, values = [], {}
    for name, shape in shapes_of(size).items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in targets:
            continue
        for half, dims in (("lora_A", (RANK, shape[1])), ("lora_B", (shape[0], RANK))):
            key = f"base_model.model.{module}.{half}.weight"
            specs.append(TensorSpec(key, "F32", dims))
            values[key] = torch.randn(dims, generator=generator) * 0.02
    with SafetensorsWriter(directory / "adapter_model.safetensors", specs, {"format": "pt"}) as writer:
        for spec in writer.specs:
            writer.write(spec.name, tensor_bytes(values[spec.name]))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base.absolute()),
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": list(targets),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))


def copy_tokenizer(source: Path, *directories: Path) -> None:
    """The tokenizer's files, which every contender wants to copy."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        for directory in directories:
            if (source / name).is_file():
                shutil.copyfile(source / name, directory / name)


def make(directory: Path, size_name: str, shard_size: str = "500MB") -> None:
    """Base and both adapters in `directory`."""
    from hf_recipes.models.smollm2 import find_smollm2

    size = SIZES[size_name]
    base = directory / "base"
    write_base(base, size, parse_size(shard_size))
    adapters = {name: directory / f"lora-{name}" for name in TARGETS}
    for name, adapter in adapters.items():
        write_adapter(adapter, base, size, TARGETS[name])
    copy_tokenizer(find_smollm2().path, base, *adapters.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", choices=SIZES, default="1.5b")
    parser.add_argument("--shard-size", default="500MB")
    options = parser.parse_args()
    make(options.directory, options.size, options.shard_size)


if __name__ == "__main__":
    main()
