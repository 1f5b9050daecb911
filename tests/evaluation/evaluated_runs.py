"""Runs to be evaluated, of random tiny models; import as `from evaluated_runs import adapter_run`."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.data.reading.source_spec import SourceSpec

SCHEMA = {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}}
ORDERS = [("12 blue pens", '{"item": "blue pens"}'), ("3 candles for Anna", '{"item": "candles"}')]


def tokenise_rows(source: SourceSpec, tokenizer) -> list[dict]:
    texts = [json.loads(line)["text"] for line in Path(source.path).read_text("utf-8").splitlines()]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    return [{"input_ids": ids, "labels": list(ids)} for ids in rows]


def turns(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write_jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_run(path: Path, base: Path, settings: dict | None) -> RunDirectory:
    run = RunDirectory(path)
    recipe = {} if settings is None else {"evaluation": settings}
    run.write(run.run_json, {"base_model": {"name_or_path": str(base), "revision": None}, "recipe": recipe})
    return run


def adapter_run(path: Path, base: Path, tokenizer, settings: dict | None) -> RunDirectory:
    """A run whose adapter is random noise."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    run = make_run(path, base, settings)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(run.adapter)
    tokenizer.save_pretrained(run.adapter)
    return run
