"""The YAML head of a card, as the Hub reads it (https://huggingface.co/docs/hub/model-cards)."""

from __future__ import annotations

import re
from typing import Any

from hf_recipes.export.card.facts import CardFacts, is_hub_name

_MEASURES = {
    "parses": ("json_parses", "JSON that parses"),
    "fits_schema": ("fits_schema", "JSON that fits the schema"),
    "fields_right": ("fields_exactly_right", "Fields exactly right"),
    "exact": ("exact_match", "All exactly right"),
}
# Who reads the weights; GGUF files are told by the Hub itself.
_LIBRARIES = {"adapter": "peft", "merged": "transformers", "quantised": "transformers"}


def card_metadata(facts: CardFacts) -> dict[str, Any]:
    """The head's keys, only those that are known. A base or data set that lies on a disk has no name on the Hub and is
    left to the text."""
    classifies = facts.run.get("task") == "sequence_classification"
    head: dict[str, Any] = {
        "license": facts.licence,
        "base_model": facts.hub_base,
        "base_model_relation": ("adapter" if facts.form == "adapter" else "finetune") if facts.hub_base else None,
        "library_name": _LIBRARIES.get(facts.form),
        "pipeline_tag": "text-classification" if classifies else "text-generation",
        "tags": _tags(facts),
        "datasets": _datasets(facts),
        "model-index": model_index(facts),
    }
    return {key: value for key, value in head.items() if value}


def model_name(facts: CardFacts) -> str:
    """The run's name, in letters that the Hub takes."""
    return re.sub(r"[^\w.-]+", "-", facts.name).strip("-.") or "model"


def _tags(facts: CardFacts) -> list[str]:
    method = re.sub(r"[^a-z0-9-]+", "-", facts.method.lower()).strip("-")
    return list(dict.fromkeys(tag for tag in ("hf_recipes", "sft", method, "gguf" * (facts.form == "gguf")) if tag))


def _datasets(facts: CardFacts) -> list[str]:
    names = [str(source.get("path") or "") for source in facts.sources]
    return list(dict.fromkeys(name for name in names if is_hub_name(name)))


def model_index(facts: CardFacts) -> list[dict[str, Any]]:
    """The tuned model's figures, through `EvalResult`; empty without an evaluation."""
    tuned = facts.evaluation.get("tuned")
    scores = tuned.get("domain") if isinstance(tuned, dict) else None
    if not isinstance(scores, dict):
        return []
    from huggingface_hub import EvalResult
    from huggingface_hub.repocard_data import eval_results_to_model_index

    held_out = _held_out(facts)
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=held_out,
            dataset_name=held_out,
            metric_type=kind,
            metric_name=name,
            metric_value=round(float(scores[key]), 4),
        )
        for key, (kind, name) in _MEASURES.items()
        if isinstance(scores.get(key), (int, float))
    ]
    return eval_results_to_model_index(model_name(facts), results) if results else []


def _held_out(facts: CardFacts) -> str:
    """The evaluation's file without its place and ending."""
    settings = facts.evaluation.get("settings")
    path = settings.get("domain") if isinstance(settings, dict) else None
    name = re.split(r"[\\/]", str(path or "held-out"))[-1]
    return re.sub(r"[^\w-]+", "-", name.rsplit(".", 1)[0]).strip("-") or "held-out"
