"""The models that a proof by behaviour runs, in fp32 and one at a time: the live adapter on its base, and a merged one.

Whatever dtype weights are stored in, products are made in fp32, so that what is compared is the weights and not the
noise of 16-bit arithmetic, and so that a CPU without 16-bit hardware is not slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.four_bits import read_rightly
from hf_recipes.core.meta_model import named_class
from hf_recipes.export.bases.trained_quantization import TrainedQuantization

# What a merged model's config.json says that its base's may say otherwise, and training went by.
_OF_TRAINING = ("id2label", "label2id", "pad_token_id")


def device_name() -> str:
    """``cuda`` when there is a GPU, else ``cpu``."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def load_plain(
    directory: str | Path, facts: Mapping[str, Any], quantization: TrainedQuantization | None = None
) -> tuple[Any, dict[str, Any]]:
    """A model by plain transformers, ready to run.

    Args:
        directory: of the model.
        facts: config.json of the merged model, for its class, labels and pad token.
        quantization: quantise it while loading, as training did.

    Returns:
        The model, and what transformers says of the keys it found (``missing_keys``, ``unexpected_keys`` …).
    """
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)
    for key in _OF_TRAINING:
        if key in facts:
            setattr(config, key, facts[key])
    stored = getattr(config, "quantization_config", None)
    given: dict[str, Any] = {"dtype": torch.float32}
    if quantization is not None:  # from weights in the dtype that training quantised, which decides the values
        given = {"quantization_config": quantization.to_config(), "dtype": getattr(torch, quantization.dtype)}
    if (stored or quantization) and device_name() == "cuda":
        given["device_map"] = {"": 0}
    model_class = named_class(facts["architectures"][0]) or transformers.AutoModelForCausalLM
    model, keys = model_class.from_pretrained(
        directory, config=config, output_loading_info=True, trust_remote_code=False, **given
    )
    if stored or quantization:
        read_rightly(model, torch.float32)
        _compute_in_fp32(model)
    else:
        model.to(device_name())
    return model.eval(), keys


def _compute_in_fp32(model: Any) -> None:
    """Cast what is not quantised, and let quantised layers multiply in fp32; their values stay."""
    import torch

    for module in model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = torch.float32
        if hasattr(module, "support_avx512bf16_for_cpu"):  # else the layer is packed anew, which rounds its scales
            module.support_avx512bf16_for_cpu = False
    for parameter in model.parameters():
        if parameter.is_floating_point() and not hasattr(parameter, "quant_state"):
            parameter.data = parameter.data.float()


def load_live(
    adapters: Sequence[tuple[str, float]],
    base: str | Path,
    facts: Mapping[str, Any],
    quantization: TrainedQuantization | None = None,
) -> Any:
    """Adapters on their base, through PEFT; several LoRA adapters add up, each times its weight.

    A base smaller than the trained vocabulary is resized, so that the saved rows fit.
    """
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    model, _ = load_plain(base, facts, quantization)
    rows = facts.get("vocab_size") or (facts.get("text_config") or {}).get("vocab_size")
    if rows and rows != model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(rows, mean_resizing=False)
    names = [f"adapter_{index}" for index in range(len(adapters))]
    live = PeftModel.from_pretrained(model, adapters[0][0], adapter_name=names[0])
    for name, (directory, _) in zip(names[1:], adapters[1:], strict=True):
        live.load_adapter(directory, adapter_name=name)
    if len(names) > 1:
        live.base_model.set_adapter(names)
    for module in (each for each in live.modules() if isinstance(each, LoraLayer)):
        for name, (_, weight) in zip(names, adapters, strict=True):
            if name in module.scaling:
                module.scaling[name] *= weight
    return live.eval()
