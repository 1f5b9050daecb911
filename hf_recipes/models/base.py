"""The base model, loaded once, in one dtype, on one device a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.models.placement import device_map_for
from hf_recipes.models.soundness import check_vocabulary as check_vocabulary
from hf_recipes.models.source import ModelSource, one_sentence, tell_trusted_code
from hf_recipes.models.stored import cast_unquantized, stored_quantization

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AUTO_CLASSES = {"causal_lm": "AutoModelForCausalLM", "sequence_classification": "AutoModelForSequenceClassification"}


def load_base(
    source: ModelSource,
    *,
    dtype: str,
    task: str = "causal_lm",
    quantization: Any = None,
    distributed_config: Any = None,
    **arguments: Any,
) -> PreTrainedModel:
    """Load a base model.

    Args:
        source: From `find_model`.
        dtype: ``bf16``, ``fp16`` or ``fp32`` in any spelling.
        task: A key of `AUTO_CLASSES`.
        quantization: From `quantized.choose_quantization`; None loads the base as it is stored.
        distributed_config: Of transformers: each rank loads its parts of the tensors, onto its device; the process
            group must be up.
        arguments: Passed on to ``from_pretrained`` (``attn_implementation``, ``trust_remote_code``, ``num_labels`` …).
            Code of the model's own runs with ``trust_remote_code`` only. That, and a ``device_map`` left out because it
            would spread the model under a launcher, is told.

    Raises:
        UserError: it cannot be found, reached or loaded.
    """
    import torch
    import transformers

    given = {key: value for key, value in arguments.items() if value is not None}
    hub = {key: given[key] for key in ("token", "cache_dir", "local_files_only") if key in given}
    stored = stored_quantization(source, **hub)
    quantized = quantization is not None or stored is not None
    device_map = device_map_for(given.pop("device_map", None), quantized=quantized)
    if distributed_config is not None:
        device_map = None  # the config places the parts
        given["distributed_config"] = distributed_config
    if source.gguf_file:
        # Left packed, a GGUF base can neither be trained in full nor saved.
        quantization = transformers.GgufConfig(dequantize=True)
    if quantization is not None:
        given["quantization_config"] = quantization
    torch_dtype = getattr(torch, canonical_dtype_name(dtype))
    if given.setdefault("trust_remote_code", False):  # left out, transformers would ask on standard input
        tell_trusted_code(source)
    with one_sentence(source):
        model = getattr(transformers, AUTO_CLASSES[task]).from_pretrained(
            source.name_or_path,
            dtype=torch_dtype,
            device_map=device_map,
            **source.load_arguments(),
            **given,
        )
    if stored is not None and stored.get("quant_method") == "bitsandbytes":
        cast_unquantized(model, torch_dtype)
    model.config.use_cache = False  # no cache in training; restored for generation by `generate` itself
    return model
