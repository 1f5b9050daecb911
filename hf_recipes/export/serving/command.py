"""The `vllm serve` line for what is there, ready to be copied."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hf_recipes.export.serving.adapter import has_fused_experts, highest_rank
from hf_recipes.export.serving.facts import model_facts, rank_choice
from hf_recipes.export.serving.files import TEMPLATE_NAME, Served
from hf_recipes.export.serving.model import serving_dtype

_FORMS = re.compile(r"^(merged(-\w+)?|adapter|model|bnb-.*|gguf.*)$")


def served_name(directory: Path) -> str:
    """A name for requests: the directory's, or that of its run where the directory is only called after its form."""
    place = directory.resolve()
    name = place.parent.name if _FORMS.match(place.name) else place.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "tuned"


def context_length(served: Served) -> int | None:
    """The positions that the model was made for, as its config says (vLLM refuses a larger ``--max-model-len``)."""
    for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = served.text_config.get(key)
        if isinstance(value, int) and value > 0:
            return value
    return None


def merged_command(served: Served) -> str:
    """One line that serves a whole model."""
    words = ["vllm", "serve", str(served.directory), *_model_words(served)]
    return shlex.join([*words, "--served-model-name", served_name(served.directory)])


def adapter_command(base: str, base_files: Served | None, adapters: Mapping[str, Served]) -> str:
    """One line that serves the base and each adapter beside it; a request chooses one by its name.

    Args:
        base: path or Hub name of the base, as it is to be written.
        base_files: the base's directory read, where it is at hand.
        adapters: by the name that requests use.
    """
    rank = rank_choice(max(highest_rank(adapter) for adapter in adapters.values()))
    words = ["vllm", "serve", base, *(_model_words(base_files) if base_files else [])]
    words += ["--enable-lora", "--max-lora-rank", str(rank)]
    if len(adapters) > 1:
        words += ["--max-loras", str(len(adapters))]
    mixed = _needs_mixed_experts(base_files, adapters.values())
    words += ["--enable-mixed-moe-lora-format"] * mixed
    words += [*_tokenizer_words(base_files, adapters.values()), *_template_words(base_files, list(adapters.values()))]
    return shlex.join([*words, "--lora-modules", *(_lora_module(name, a, mixed) for name, a in adapters.items())])


def _model_words(served: Served) -> list[str]:
    words = ["--dtype", serving_dtype(served)]
    length = context_length(served)
    return [*words, "--max-model-len", str(length)] if length else words


def _tokenizer_words(base: Served | None, adapters: Iterable[Served]) -> list[str]:
    """The tokenizer is the base's, unless it has none or an adapter's has tokens of its own."""
    if base is None:
        return []
    own = (a for a in adapters if a.has_tokenizer and (not base.has_tokenizer or set(a.tokens) - set(base.tokens)))
    chosen = next(own, None)
    return ["--tokenizer", str(chosen.directory)] if chosen else []


def _template_words(base: Served | None, adapters: Sequence[Served]) -> list[str]:
    """vLLM renders every request by the base's template; an adapter's own has to be named. One for all."""
    trained = {adapter.template for adapter in adapters if adapter.template}
    if len(trained) != 1 or (base is not None and base.template in trained):
        return []
    source = next(adapter.directory for adapter in adapters if adapter.template)
    return ["--chat-template", str(source / TEMPLATE_NAME)] if (source / TEMPLATE_NAME).is_file() else []


def _needs_mixed_experts(base: Served | None, adapters: Iterable[Served]) -> bool:
    facts = model_facts(base.architecture) if base is not None and base.architecture else None
    fused = bool(facts and facts.get("fused_experts"))
    return not fused and any(has_fused_experts(adapter) for adapter in adapters)


def _lora_module(name: str, adapter: Served, mixed: bool) -> str:
    if mixed and has_fused_experts(adapter):
        return json.dumps({"name": name, "path": str(adapter.directory), "is_3d_lora_weight": True})
    return f"{name}={adapter.directory}"
