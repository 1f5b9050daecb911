"""What one version of vLLM accepts, read once from its source into `vllm_facts.json`, and what a check found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

Level = Literal["ok", "warning", "will not load"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `about` is what, `text` one sentence with the reason and the cure."""

    level: Level
    about: str
    text: str

    def line(self) -> str:
        """For the terminal."""
        return f"{self.level}: {self.text}"

    def to_dict(self) -> dict[str, str]:
        """Plain data, ready for JSON."""
        return asdict(self)


def ok(about: str, text: str) -> Finding:
    """Looked at and as it should be."""
    return Finding("ok", about, text)


def warning(about: str, text: str) -> Finding:
    """It loads, and does something that its user may not expect."""
    return Finding("warning", about, text)


def fatal(about: str, text: str) -> Finding:
    """The server will refuse it."""
    return Finding("will not load", about, text)


@cache
def vllm_facts() -> dict[str, Any]:
    """The table: ``version``, ``read_on``, ``models`` by architecture and the rules; ``sources`` names the file of each
    rule in vLLM's own source."""
    return json.loads((Path(__file__).parent / "vllm_facts.json").read_text(encoding="utf-8"))


def vllm_name() -> str:
    """``vLLM 0.33.0``: every refusal says which version it speaks of."""
    return f"vLLM {vllm_facts()['version']}"


def model_facts(architecture: str) -> dict[str, Any] | None:
    """What the table has for an architecture: ``lora``, ``embeddings``, ``fused_experts``, ``through_transformers``.

    vLLM makes a classifier of any causal LM it knows (`_normalize_arch`), so `LlamaForSequenceClassification` is
    looked up as `LlamaForCausalLM`. None for an architecture that is not in the registry.
    """
    models = vllm_facts()["models"]
    if architecture in models:
        return models[architecture]
    for ending in vllm_facts()["architecture_endings"]:
        if architecture.endswith(ending):
            return models.get(architecture.removesuffix(ending) + "ForCausalLM")
    return None


def rank_choice(rank: int) -> int | None:
    """The smallest ``--max-lora-rank`` that holds `rank`, or None above the largest."""
    return next((choice for choice in vllm_facts()["max_lora_ranks"] if choice >= rank), None)
