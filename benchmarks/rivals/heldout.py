"""The loss of trained adapters on rows nobody trained on, all by the same code: answers only, fp32, row by row.

    python benchmarks/rivals/heldout.py MODEL ROWS.jsonl OUTPUT_DIR [OUTPUT_DIR …]

Prints one JSON line: the base model's loss and that of each directory's adapter, in nats a token (null: none found).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    model_path, rows_path, *outputs = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    rows = [json.loads(line) for line in Path(rows_path).read_text(encoding="utf-8").splitlines()]
    samples = [tokenise(row["messages"], tokenizer) for row in rows]
    base = load_base(model_path)
    losses: dict[str, float | None] = {"base": mean_loss(base, samples)}
    for output in outputs:
        model = with_adapter(model_path, Path(output))
        losses[output] = None if model is None else mean_loss(model, samples)
    print(json.dumps(losses))


def load_base(path: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def with_adapter(model_path: str, output: Path) -> Any | None:
    """The base with the adapter last written below `output`."""
    configs = sorted(output.rglob("adapter_config.json"), key=lambda path: path.stat().st_mtime)
    if configs:
        return PeftModel.from_pretrained(load_base(model_path), configs[-1].parent).eval()
    litgpt = next(output.rglob("lit_model.pth.lora"), None)
    return None if litgpt is None else from_litgpt(load_base(model_path), litgpt)


def from_litgpt(base: Any, path: Path) -> Any:
    """litgpt keeps q, k and v in one matrix, in this order; with LoRA on q and v, A is theirs stacked, and so is B."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    state = state.get("model", state)
    rank = next(value for name, value in state.items() if name.endswith("lora_A")).shape[0] // 2
    config = base.config
    query = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    weights = {}
    for name, value in state.items():
        if not name.endswith(("lora_A", "lora_B")):
            continue
        layer, kind = name.split(".")[2], name[-6:]
        split = rank if kind == "lora_A" else query
        for target, part in (("q_proj", value[:split]), ("v_proj", value[split:])):
            weights[f"base_model.model.model.layers.{layer}.self_attn.{target}.{kind}.weight"] = part.float()
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, settings)
    unexpected = set_peft_model_state_dict(model, weights).unexpected_keys
    assert not unexpected, unexpected
    return model.eval()


def tokenise(messages: list[dict[str, str]], tokenizer: Any) -> tuple[torch.Tensor, int]:
    """Token ids of a conversation, and where the answer starts."""
    whole = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=True)["input_ids"]
    return torch.tensor([whole]), len(prompt)


@torch.no_grad()
def mean_loss(model: Any, samples: list[tuple[torch.Tensor, int]]) -> float:
    total, count = 0.0, 0
    for ids, start in samples:
        logits = model(input_ids=ids, use_cache=False).logits[0, start - 1 : -1]
        total += float(cross_entropy(logits.float(), ids[0, start:], reduction="sum"))
        count += ids.shape[1] - start
    return total / count


if __name__ == "__main__":
    main()
