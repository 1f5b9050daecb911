"""Whether vLLM loads a model's directory: architecture, dtype, quantised form, weights and vocabulary."""

from __future__ import annotations

from hf_recipes.core.meta_model import named_class
from hf_recipes.export.serving.facts import Finding, fatal, model_facts, ok, vllm_facts, vllm_name, warning
from hf_recipes.export.serving.files import Served

_FILE_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_LEFT_TO_VLLM = "serve the merged 16-bit form with --quantization fp8, which makes 8-bit weights while it loads"


def check_model(served: Served) -> list[Finding]:
    """Everything but tokenizer and end of turn, for a merged or base model."""
    if not served.config:
        return [_no_config(served)]
    return [
        *check_architecture(served),
        *_check_quantised(served),
        *_check_weights(served),
        *_check_dtype(served),
        *_check_vocabulary(served),
    ]


def _no_config(served: Served) -> Finding:
    # vllm/model_executor/model_loader/__init__.py has no loader for GGUF.
    if any(served.directory.glob("*.gguf")):
        return fatal(
            "form",
            f"{vllm_name()} has no loader for GGUF: serve this file with llama.cpp or Ollama, and a merged 16-bit form "
            "with vLLM.",
        )
    return fatal("config", "config.json is missing, from which vLLM takes the architecture: merge or save it again.")


def check_architecture(served: Served) -> list[Finding]:
    """vllm/model_executor/models/registry.py: native, through transformers, removed, or unknown."""
    name = served.architecture
    if name is None:
        return [fatal("architecture", "config.json names no architectures: copy the entry of the base's config.json.")]
    removed = vllm_facts()["removed"].get(name)
    if removed:
        return [
            fatal("architecture", f"{name} was in vLLM {removed} and is not in {vllm_name()}: serve it with another.")
        ]
    facts = model_facts(name)
    if facts is None:
        return [_outside_registry(name, served)]
    if facts.get("through_transformers"):
        return [ok("architecture", f"{name} runs in {vllm_name()} through transformers' own modelling code.")]
    return [ok("architecture", f"{name} is in {vllm_name()}.")]


def _outside_registry(name: str, served: Served) -> Finding:
    """vLLM falls back on transformers' class where it has one (`_try_resolve_transformers`)."""
    if served.config.get("auto_map"):
        return warning(
            "architecture",
            f"{name} is not in {vllm_name()}, which would run the model's own code: add --trust-remote-code if you "
            "trust it, and try it before you ship.",
        )
    model_class = named_class(name)
    usable = model_class is not None and (
        model_class.is_backend_compatible() or model_class._can_set_attn_implementation()
    )
    if usable:
        return warning(
            "architecture",
            f"{name} is not in {vllm_name()}, which falls back on transformers' class: try it before you ship.",
        )
    return fatal("architecture", f"{name} is neither in {vllm_name()} nor usable through transformers: serve it so.")


def _check_quantised(served: Served) -> list[Finding]:
    """vllm/config/model.py (_verify_quantization)."""
    settings = served.config.get("quantization_config")
    if not isinstance(settings, dict):
        return []
    method = str(settings.get("quant_method") or "").lower()
    if method in vllm_facts()["quantization_methods"]:
        return [ok("form", f"The weights are in {method}, which {vllm_name()} reads.")]
    return [
        fatal(
            "form", f"{vllm_name()} does not read weights in '{method}' without a plug-in of its own: {_LEFT_TO_VLLM}."
        )
    ]


def _check_weights(served: Served) -> list[Finding]:
    if served.damage:
        return [fatal("weights", f"Weights are damaged: {served.damage[0]}; write the directory again.")]
    if not served.tensors:
        if any(served.directory.glob("*.bin")):
            return [warning("weights", "Weights are pickles (.bin): save them as safetensors, which run no code.")]
        return [fatal("weights", "No safetensors weights are here: write the directory again.")]
    missing_head = _missing_head(served)
    if missing_head:
        return [missing_head]
    size = sum(entry.nbytes for entry in served.tensors.values())
    return [ok("weights", f"{len(served.tensors)} tensors, {size / 1e6:,.1f} MB, all files whole.")]


def _missing_head(served: Served) -> Finding | None:
    """An untied head that is not in the files stays uninitialised, which vLLM's loader refuses
    (vllm/model_executor/model_loader/default_loader.py, track_weights_loading)."""
    embedded = "model.embed_tokens.weight" in served.tensors
    causal = (served.architecture or "").endswith("ForCausalLM")
    tied = served.text_config.get("tie_word_embeddings", False)
    if causal and embedded and not tied and "lm_head.weight" not in served.tensors:
        return fatal(
            "weights",
            "config.json says that the head is not tied to the embedding, and there is no lm_head.weight: set "
            "tie_word_embeddings to what the training had, or write the directory again.",
        )
    return None


def weight_dtype(served: Served) -> str | None:
    """The one dtype of the float tensors, as ``bfloat16``, or None where there are several or none."""
    found = {_FILE_DTYPES.get(entry.dtype) for entry in served.tensors.values() if entry.dtype in _FILE_DTYPES}
    return found.pop() if len(found) == 1 else None


def serving_dtype(served: Served) -> str:
    """The ``--dtype`` to give: that of the config where vLLM takes it, ``bfloat16`` where it would not keep it.

    vllm/config/model.py, _resolve_auto_dtype: fp32 is halved, and fp16 refused for some models.
    """
    dtype = served.text_config.get("dtype") or served.text_config.get("torch_dtype") or weight_dtype(served) or "auto"
    name = str(dtype).removeprefix("torch.")
    return "bfloat16" if name == "float32" or (name == "float16" and _refuses_float16(served)) else name


def _refuses_float16(served: Served) -> bool:
    return served.config.get("model_type") in vllm_facts()["no_float16"]


def _check_dtype(served: Served) -> list[Finding]:
    given = served.text_config.get("dtype") or served.text_config.get("torch_dtype")
    name = str(given).removeprefix("torch.") if given else None
    weights = weight_dtype(served)
    if name and weights and name != weights:
        return [
            warning(
                "dtype",
                f"config.json says {name} and the weights are {weights}; vLLM follows the config: make them agree.",
            )
        ]
    name = name or weights
    if name == "float32":
        return [
            warning(
                "dtype",
                "The weights are fp32, which vLLM halves to bf16 by itself: merge with --to bf16 to ship what is "
                "served, or give --dtype float32.",
            )
        ]
    if name == "float16" and _refuses_float16(served):
        return [
            warning(
                "dtype",
                f"{vllm_name()} refuses fp16 for {served.config.get('model_type')} (it overflows) and serves bf16: "
                "merge with --to bf16.",
            )
        ]
    return [ok("dtype", f"{name} throughout.")] if name else []


def _check_vocabulary(served: Served) -> list[Finding]:
    """vllm/model_executor/layers/vocab_parallel_embedding.py (weight_loader asserts the number of rows)."""
    size = served.text_config.get("vocab_size")
    entry = next((e for n, e in served.tensors.items() if n.endswith("embed_tokens.weight")), None)
    if isinstance(size, int) and entry is not None and entry.shape[0] != size:
        return [
            fatal(
                "vocabulary",
                f"The embedding has {entry.shape[0]:,} rows and config.json says vocab_size {size:,}: set it to the "
                "rows that are there.",
            )
        ]
    top = max(served.tokens.values(), default=-1)
    if isinstance(size, int) and top >= size:
        return [
            warning(
                "vocabulary",
                f"The tokenizer knows token {top:,}, the model has {size:,}: a prompt with it is refused; train or "
                "merge with the embedding resized.",
            )
        ]
    return []
