"""The base's model class without its weights: names, shapes and structure as transformers has them in memory."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.export.bases.read import BaseModel


def meta_model(base: BaseModel) -> Any:
    """A `transformers.PreTrainedModel` on the meta device, of the class that the base's config names.

    Raises:
        UserError: the class cannot be built from the config alone (remote code).
    """
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(base.directory)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        names = base.config.get("architectures") or [""]
        model_class = getattr(transformers, names[0], None)
        with torch.device("meta"):
            return model_class(config) if model_class else transformers.AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, OSError) as error:
        raise UserError(
            f"How transformers names the parameters of '{base.directory}' cannot be told "
            f"({str(error).splitlines()[0]}): an adapter on them can only be merged for a model class that it has."
        ) from None
