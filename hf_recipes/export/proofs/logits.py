"""Proof by behaviour: logits and greedy answers of the live adapter and of the merged model, in a process of its own.

Both sides compute in fp32 on the CPU, whatever dtype their weights are stored in, so that what is compared is the
weights and not the noise of 16-bit arithmetic, and so that a CPU without 16-bit hardware is not slow.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed

PROMPTS = (
    "What is the capital of France?",
    "Write a short e-mail that moves our meeting from Monday to Tuesday.",
    'Give me {"a": 1, "b": [2, 3]} as YAML.',
    "Explain in two sentences why the sky is blue.",
)
NEW_TOKENS = 24
# Rounding to bf16 costs 1e-6 to 1e-2; a lost or misplaced update far more.
MAX_KL_NATS = 0.1
MEANING = (
    "both computed in fp32: what differs is that merged weights are rounded to their dtype once, while the live "
    "adapter adds its fp32 update to the stored base"
)


def compare_logits(adapter: Path, base: Path, merged: Path) -> dict[str, Any]:
    """Compare the adapter on its base, through peft, with the merged model, through plain transformers.

    A new process loads one model after the other. The adapter answers each prompt greedily; both models then give
    logits for prompt and answer, and the merged one answers by itself.

    Args:
        adapter, base, merged: directories; the prompts are rendered by the merged model's chat template.

    Returns:
        ``positions``, ``max_abs_difference`` of logits, ``kl_mean`` and ``kl_max`` in nats (adapter against merged),
        ``top1_agreement`` in [0, 1], ``prompts``, ``same_generations`` (count), ``generations``, ``meaning``,
        ``seconds``.

    Raises:
        CheckFailed: one of the models cannot be loaded or run, with the last line of what it said; or they are not the
            same model: a mean KL above `MAX_KL_NATS`.
    """
    started = time.perf_counter()
    order = {"adapter": str(adapter), "base": str(base), "merged": str(merged)}
    command = [sys.executable, "-m", "hf_recipes.export.proofs.logits"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}  # everything is in the three directories
    done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, check=False, env=offline)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CheckFailed(f"the merged model cannot be compared with the adapter ({reason}); no output was left")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    if result["kl_mean"] > MAX_KL_NATS:
        raise CheckFailed(
            f"the merged model is not the adapter's: mean KL {result['kl_mean']:.3g} nats, {MAX_KL_NATS} or less was "
            "expected of rounding; no output was left"
        )
    return {**result, "meaning": MEANING, "seconds": time.perf_counter() - started}


def _compare(order: dict[str, Any]) -> dict[str, Any]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(order["merged"])
    facts = json.loads((Path(order["merged"]) / "config.json").read_text(encoding="utf-8"))
    prompts = [_render(tokenizer, prompt) for prompt in PROMPTS]
    model = _load_adapter(order, facts)
    answers = [_answer(model, prompt) for prompt in prompts]
    rows = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    live = [_logits(model, row) for row in rows]
    del model
    gc.collect()
    merged = _load(order["merged"], facts)
    statistics = _statistics(live, [_logits(merged, row) for row in rows])
    merged_answers = [_answer(merged, prompt) for prompt in prompts]
    texts = [[tokenizer.decode(row) for row in side] for side in (answers, merged_answers)]
    return {
        **statistics,
        "prompts": len(prompts),
        "same_generations": sum(one == other for one, other in zip(answers, merged_answers, strict=True)),
        "generations": [
            {"prompt": prompt, "adapter": one, "merged": other}
            for prompt, one, other in zip(PROMPTS, *texts, strict=True)
        ],
    }


def _render(tokenizer: Any, prompt: str) -> list[int]:
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])
    return list(tokenizer(prompt)["input_ids"])


def _load(directory: str, facts: dict[str, Any]) -> Any:
    """The model in `directory`, as of the merged model's class and labels, in fp32."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    for key in ("id2label", "label2id", "pad_token_id"):
        if key in facts:
            setattr(config, key, facts[key])
    if quantisation := getattr(config, "quantization_config", None):
        quantisation["bnb_4bit_compute_dtype"] = "float32"
    model_class = getattr(transformers, facts["architectures"][0])
    return model_class.from_pretrained(directory, config=config, dtype="float32").eval()


def _load_adapter(order: dict[str, Any], facts: dict[str, Any]) -> Any:
    """The live adapter; a base smaller than the trained vocabulary is resized, so that the saved rows fit."""
    from peft import PeftModel

    model = _load(order["base"], facts)
    rows = facts.get("vocab_size")
    if rows and rows != model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return PeftModel.from_pretrained(model, order["adapter"]).eval()


def _answer(model: Any, prompt: list[int]) -> list[int]:
    """At most `NEW_TOKENS` greedy tokens, without the sampling settings of its own config; none of a classifier."""
    import torch
    from transformers import GenerationConfig

    if not model.can_generate():
        return []
    own = model.generation_config
    settings = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        repetition_penalty=1.0,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id if own.pad_token_id is not None else 0,
    )
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return output[0, len(prompt) :].tolist()


def _logits(model: Any, row: list[int]) -> Any:
    import torch

    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([row])).logits
    return logits.reshape(-1, logits.shape[-1]).float()


def _statistics(live: list[Any], merged: list[Any]) -> dict[str, Any]:
    """Over all positions of all rows; each item is (positions, words or labels) in fp32."""
    import torch

    largest = max(float((one - other).abs().max()) for one, other in zip(live, merged, strict=True))
    divergences, agreements = [], []
    for one, other in zip(live, merged, strict=True):
        p, q = one.double().log_softmax(-1), other.double().log_softmax(-1)
        divergences.append((p.exp() * (p - q)).sum(-1).clamp_min(0.0))
        agreements.append(one.argmax(-1) == other.argmax(-1))
    kl, same = torch.cat(divergences), torch.cat(agreements)
    return {
        "positions": kl.numel(),
        "max_abs_difference": largest,
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
        "top1_agreement": float(same.double().mean()),
    }


if __name__ == "__main__":
    print(json.dumps(_compare(json.load(sys.stdin))))
