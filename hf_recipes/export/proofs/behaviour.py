"""The process of the proof by behaviour: loads one model after the other and tells how far apart they are.

Reads an order as JSON from its input and prints a result as JSON; see `proofs.logits`, which starts it and judges.
"""

from __future__ import annotations

import gc
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hf_recipes.core.files import read_json
from hf_recipes.export.bases.trained_quantization import TrainedQuantization
from hf_recipes.export.proofs.answers import PROMPTS, fixed_prompts, greedy, logits, render, rows_that_fit
from hf_recipes.export.proofs.divergence import Distance, distance, first_difference, losses, update_share
from hf_recipes.export.proofs.live_models import device_name, load_live, load_plain
from hf_recipes.export.proofs.rounding import add_rounding_noise
from hf_recipes.export.proofs.same_tokenizer import tokenizer_differences
from hf_recipes.export.proofs.verdict import floor_of, is_settled

# What is compared at most, so that the logits of three models fit beside one model.
MAX_POSITIONS, MAX_LOGITS = 1024, 1 << 25
MAX_DRAWS = 6


@dataclass
class Texts:
    """What both sides read: the prompts, the live adapter's answers to them, and rows of the training's data."""

    prompts: list[list[int]]
    samples: list[list[int]]
    labels: list[list[int]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    @property
    def rows(self) -> list[list[int]]:
        return [p + a for p, a in zip(self.prompts, self.answers, strict=True)] + self.samples

    def cut(self, words: int) -> None:
        """Leave of the samples what may be compared."""
        positions = min(MAX_POSITIONS, max(256, MAX_LOGITS // words))
        used = sum(map(len, self.prompts)) + sum(map(len, self.answers))
        taken = rows_that_fit([len(row) for row in self.samples], max(0, positions - used))
        self.samples = [self.samples[index][:length] for index, length in taken.items()]
        if self.labels:
            self.labels = [self.labels[index][:length] for index, length in taken.items()]


def compare(order: Mapping[str, Any]) -> dict[str, Any]:
    """Live adapter against merged model; see `proofs.logits.compare_logits` for what is returned."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(order["merged"], trust_remote_code=False)
    facts = _facts(order["merged"])
    prompts = [render(tokenizer, each) for each in [*fixed_prompts(), *order["prompts"]]]
    texts = Texts(prompts, order["rows"], order.get("labels", []))
    live, base = _run_live(order, order["live"], facts, texts)
    trained = _run_live(order, order["as_trained"], facts, texts)[0] if order["as_trained"] else None
    model, keys = load_plain(order["merged"], facts)
    merged = logits(model, texts.rows)
    result = {
        **distance(live, merged).to_dict(),
        "device": device_name(),
        "effect": distance(live, base).to_dict(),
        "update_share": update_share(base, live, merged),
        "prompts": len(texts.prompts),
        "samples": len(texts.samples),
        "loss": _losses(texts, {"base": base, "adapter": live, "merged": merged}),
        "as_trained": distance(trained, merged).to_dict() if trained else None,
        "missing_keys": sorted(keys["missing_keys"]),
        "unexpected_keys": sorted(keys["unexpected_keys"]),
        "tokenizer": tokenizer_differences(order["tokenizer"], order["merged"]),
        "generations": _generations(tokenizer, texts, live, merged, model),
    }
    del live, base, trained
    return {**result, **_rounding_floor(model, {**order, "measured": result}, merged, texts)}


def compare_merged(order: Mapping[str, Any]) -> dict[str, Any]:
    """Each of several merged models against the adapter on the base that training saw."""
    from transformers import AutoTokenizer

    directories = order["directories"]
    first = next(iter(directories.values()))
    tokenizer, facts = AutoTokenizer.from_pretrained(first, trust_remote_code=False), _facts(first)
    prompts = [render(tokenizer, each) for each in [*fixed_prompts(), *order["prompts"]]]
    texts = Texts(prompts, order["rows"], order.get("labels", []))
    trained, base = _run_live(order, order["live"], facts, texts)
    sides = {"base": base, "adapter": trained}
    results = {"base": distance(trained, base).to_dict()}
    for name, directory in directories.items():
        model, _ = load_plain(directory, facts)
        sides[name] = logits(model, texts.rows)
        results[name] = distance(trained, sides[name]).to_dict()
        del model
        gc.collect()
    return {"distances": results, "loss": _losses(texts, sides), "samples": len(texts.samples)}


def _facts(directory: str) -> dict[str, Any]:
    facts: dict[str, Any] = read_json(Path(directory) / "config.json")
    return facts


def _run_live(
    order: Mapping[str, Any], side: Mapping[str, Any], facts: Mapping[str, Any], texts: Texts
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits of the adapter and of its base, which is the same model with the adapter off; the first side to come
    answers the prompts."""
    quantization = TrainedQuantization(**side["quantization"]) if side["quantization"] else None
    model = load_live([tuple(each) for each in order["adapters"]], side["base"], facts, quantization)
    if not texts.answers:
        texts.answers = greedy(model, texts.prompts)
        texts.cut(model.get_input_embeddings().weight.shape[0])
    live = logits(model, texts.rows)
    with model.disable_adapter():
        base = logits(model, texts.rows)
    del model
    gc.collect()
    return live, base


def _losses(texts: Texts, sides: Mapping[str, list[torch.Tensor]]) -> dict[str, float] | None:
    """Mean loss of each side on what was learned of the samples, in nats a token; None without samples or of a
    classifier."""
    count = len(texts.samples)
    if not count or any(len(z) != len(row) for z, row in zip(sides["base"], texts.rows, strict=True)):
        return None
    labels = texts.labels or [[]] * count
    found = {
        side: torch.cat([losses(*each) for each in zip(z[-count:], texts.samples, labels, strict=True)])
        for side, z in sides.items()
    }
    return {side: float(each.mean()) for side, each in found.items()} if found["base"].numel() else None


def _generations(tokenizer: Any, texts: Texts, live: list[Any], merged: list[Any], model: Any) -> list[dict[str, Any]]:
    """Each prompt's answers. The merged model's need not be made where its choices on the adapter's answer are the
    same; where they part, it answers itself."""
    parted: dict[int, tuple[int, float]] = {}
    for index, (prompt, answer) in enumerate(zip(texts.prompts, texts.answers, strict=True)):
        if answer and (found := first_difference(live[index], merged[index], len(prompt))):
            parted[index] = found
    anew = dict(zip(parted, greedy(model, [texts.prompts[index] for index in parted]), strict=True))
    return [
        {
            "prompt": PROMPTS[index] if index < len(PROMPTS) else tokenizer.decode(prompt),
            "adapter": tokenizer.decode(answer),
            "merged": tokenizer.decode(anew.get(index, answer)),
            "common_tokens": parted[index][0] if index in parted else None,
            "gap": parted[index][1] if index in parted else None,
        }
        for index, (prompt, answer) in enumerate(zip(texts.prompts, texts.answers, strict=True))
    ]


def _rounding_floor(model: Any, order: Mapping[str, Any], merged: list[torch.Tensor], texts: Texts) -> dict[str, Any]:
    """Round the merged weights once more, at random, and tell how far that moves the model; spoils the model."""
    tensors = {name: each.data for name, each in model.state_dict(keep_vars=True).items() if each.is_floating_point()}
    rounded = order["rounded"] if order["rounded"] is not None else dict.fromkeys(tensors)
    names = {name: _name_in_memory(name, model, tensors) for name in rounded}
    placed = {own: rounded[name] for name, own in names.items() if own in tensors}
    draws = _draws(model, tensors, placed, order, merged, texts)
    return {"floor": floor_of(draws), "unplaced": sorted(name for name, own in names.items() if own not in tensors)}


def _draws(
    model: Any,
    tensors: Mapping[str, Any],
    placed: Mapping[str, Any],
    order: Mapping[str, Any],
    merged: list[torch.Tensor],
    texts: Texts,
) -> list[Distance]:
    """How far one rounding moves the model: drawn once where that settles it, else several times, each on top of the
    last. Where few weights decide what is said, a single draw may be small by chance."""
    draws: list[Distance] = []
    before = merged
    while not draws or (len(draws) < MAX_DRAWS and not is_settled(order["measured"], draws[0].to_dict())):
        add_rounding_noise(tensors, placed, getattr(torch, order["dtype"]), order["seed"] + len(draws))
        after = logits(model, texts.rows)
        draws.append(distance(before, after))
        before = after
    return draws


def _name_in_memory(name: str, model: Any, tensors: Mapping[str, Any]) -> str:
    """The parameter that a checkpoint's tensor becomes, or becomes a part of (transformers fuses experts, e.g.)."""
    if name in tensors:
        return name
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    conversions = get_model_conversion_mapping(model)
    renamed, _ = rename_source_key(
        name,
        [each for each in conversions if isinstance(each, WeightRenaming)],
        [each for each in conversions if isinstance(each, WeightConverter)],
        model.base_model_prefix,
        dict(tensors),
    )
    return str(renamed)


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(_plain((compare_merged if "directories" in given else compare)(given))))
