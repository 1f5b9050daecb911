"""Whether vLLM loads a LoRA adapter beside its base (``--enable-lora``), without merging it."""

from __future__ import annotations

import re

from hf_recipes.export.serving.facts import Finding, fatal, model_facts, ok, rank_choice, vllm_facts, vllm_name, warning
from hf_recipes.export.serving.files import Served

_MERGE = "merge it and serve the merged model"
_LORA_TENSOR = re.compile(r"^(?P<module>.+?)\.(lora_[AB]\.weight|lora_embedding_[AB])$")
_EMBEDDINGS = ("embed_tokens", "lm_head", "wte")


def check_adapter(adapter: Served, base: Served | None) -> list[Finding]:
    """Findings for one adapter; `base`, where it is at hand, is what it will run on."""
    if not adapter.tensors:
        damage = f" ({adapter.damage[0]})" if adapter.damage else ""
        return [fatal("weights", f"adapter_model.safetensors cannot be read here{damage}: save the adapter again.")]
    if not is_lora(adapter):
        kind = adapter.adapter_config.get("peft_type")
        return [
            fatal("method", f"{vllm_name()} serves LoRA only, and this is {kind}: {_MERGE} where it can be merged.")
        ]
    findings = [*_check_features(adapter), *_check_rank(adapter)]
    if all(finding.level == "ok" for finding in findings):  # else their tensors would only say it again
        findings += _check_tensors(adapter)
    return findings + (_check_against_base(adapter, base) if base is not None and base.config else [])


def is_lora(adapter: Served) -> bool:
    """Whether PEFT's config says LoRA. (vLLM itself looks for `r`, `lora_alpha` and `target_modules`.)"""
    return adapter.adapter_config.get("peft_type") == "LORA"


def highest_rank(adapter: Served) -> int:
    """The largest rank of any module, on which ``--max-lora-rank`` depends (peft_helper.py, validate_legal)."""
    pattern = adapter.adapter_config.get("rank_pattern") or {}
    return max([int(adapter.adapter_config.get("r", 0)), *(int(rank) for rank in pattern.values())])


def has_fused_experts(adapter: Served) -> bool:
    """Whether PEFT's `target_parameters` put LoRA on fused experts (one 3-D tensor for all of a layer)."""
    return any(re.search(r"\.experts(\.base_layer)*\.lora_[AB]\.weight$", name) for name in adapter.tensors)


def _check_features(adapter: Served) -> list[Finding]:
    config = adapter.adapter_config
    findings = [
        fatal("method", f"{vllm_name()} does not serve {name}: {_MERGE}.")
        for key, name in vllm_facts()["unsupported_keys"].items()
        if config.get(key)
    ]
    if config.get("bias", "none") != "none":
        findings.append(fatal("method", f"{vllm_name()} does not serve trained biases: {_MERGE}."))
    saved = [name for name in config.get("modules_to_save") or () if name not in vllm_facts()["saved_modules"]]
    if saved:
        findings.append(
            fatal("method", f"{vllm_name()} does not serve modules trained in full ({', '.join(saved)}): {_MERGE}.")
        )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower() not in vllm_facts()["plain_inits"]:
        findings.append(
            fatal(
                "method",
                f"{vllm_name()} refuses init_lora_weights '{start}', by which the base's own weights change: save "
                "it as plain LoRA (path_initial_model_for_weight_conversion), or merge it.",
            )
        )
    return findings or [ok("method", f"LoRA of a kind that {vllm_name()} serves.")]


def _check_rank(adapter: Served) -> list[Finding]:
    rank = highest_rank(adapter)
    choice = rank_choice(rank)
    if choice is None:
        most = vllm_facts()["max_lora_ranks"][-1]
        return [fatal("rank", f"Rank {rank} is above {most}, the most that {vllm_name()} serves: {_MERGE}.")]
    return [ok("rank", f"Rank {rank} fits --max-lora-rank {choice}.")]


def _check_tensors(adapter: Served) -> list[Finding]:
    """vllm/lora/utils.py (parse_fine_tuned_lora_name): any other name is refused. Base values that PEFT saved under an
    embedding (``base_layer``) are left out by vLLM without a word (is_base_embedding_weights)."""
    others = []
    for name in adapter.tensors:
        if _LORA_TENSOR.match(name) or name.endswith((".embed_tokens.base_layer.weight", ".lm_head.base_layer.weight")):
            continue
        if name.split(".")[-2:-1] in (["score"], ["classifier"]):
            continue
        others.append(name)
    if not others:
        return [ok("weights", f"{len(adapter.tensors)} tensors, all with names that vLLM knows.")]
    what = "trained tokens" if "trainable_tokens" in others[0] else f"'{others[0]}'"
    return [
        fatal(
            "weights", f"{vllm_name()} cannot place {what} ({len(others)} of {len(adapter.tensors)} tensors): {_MERGE}."
        )
    ]


def _check_against_base(adapter: Served, base: Served) -> list[Finding]:
    name = base.architecture or "its architecture"
    facts = model_facts(name)
    if facts is None:
        return []
    if not facts["lora"]:
        return [fatal("base", f"{vllm_name()} serves no adapters on {name}: {_MERGE}.")]
    return [
        *_check_embeddings(adapter, base, facts["embeddings"]),
        *_check_vocabulary(adapter, base, facts["embeddings"]),
        *_check_experts(adapter, bool(facts.get("fused_experts"))),
    ] or [ok("base", f"{vllm_name()} serves adapters on {name}.")]


def _check_embeddings(adapter: Served, base: Served, served: list[str]) -> list[Finding]:
    modules = {match["module"].split(".")[-1] for name in adapter.tensors if (match := _LORA_TENSOR.match(name))}
    refused = sorted(modules & set(_EMBEDDINGS) - set(served))
    if refused:
        return [fatal("base", f"{vllm_name()} takes no LoRA on {', '.join(refused)} of {base.architecture}: {_MERGE}.")]
    return []


def _check_vocabulary(adapter: Served, base: Served, served: list[str]) -> list[Finding]:
    size, most = base.text_config.get("vocab_size"), vllm_facts()["max_lora_vocabulary"]
    if not isinstance(size, int):
        return []
    if "lm_head" in served and size > most:
        return [
            fatal("base", f"{vllm_name()} serves adapters up to {most:,} words, and the base has {size:,}: {_MERGE}.")
        ]
    # vllm/lora/lora_model.py: the embedding's A must have as many columns as the base has words.
    for name, entry in adapter.tensors.items():
        if name.endswith("lora_embedding_A") and entry.shape[1] != size:
            return [
                fatal(
                    "base",
                    f"The vocabulary was extended in training ({entry.shape[1]:,} words, the base has {size:,}), which "
                    f"{vllm_name()} does not serve: {_MERGE}.",
                )
            ]
    return []


def _check_experts(adapter: Served, fused: bool) -> list[Finding]:
    """vllm/lora/model_manager.py (_validate_moe_lora_format)."""
    if has_fused_experts(adapter) and not fused:
        return [
            warning(
                "base",
                "The adapter holds one LoRA for all experts of a layer, which this model takes only with "
                "--enable-mixed-moe-lora-format and is_3d_lora_weight, as in the line below.",
            )
        ]
    return []
