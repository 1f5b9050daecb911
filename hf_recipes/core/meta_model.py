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
    model_class = named_class(class_name)
    with torch.device("meta"):
        if model_class is not None:
            return model_class(config)
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def named_class(name: object) -> Any:
    """The model class of transformers that a config.json names; None where there is no model class of that name."""
    import transformers

    found = getattr(transformers, name, None) if isinstance(name, str) else None
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None
