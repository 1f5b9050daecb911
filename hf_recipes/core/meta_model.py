"""A model class without its weights: names, shapes and structure as transformers has them in memory."""

from __future__ import annotations

from typing import Any


def model_on_meta(config: Any, class_name: str | None = None) -> Any:
    """The `transformers.PreTrainedModel` of `config` on the meta device.

    Args:
        config: a transformers config; a quantisation in it is left out.
        class_name: the model class, as config.json names it; without one, or where transformers has none of that name,
            the causal language model of the config.

    Raises:
        ValueError, KeyError, OSError: what transformers raises where it has no class for the config.
    """
    import torch
    import transformers

    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model_class = getattr(transformers, class_name or "", None)
    with torch.device("meta"):
        return model_class(config) if model_class else transformers.AutoModelForCausalLM.from_config(config)
