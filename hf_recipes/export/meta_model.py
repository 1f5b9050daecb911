"""The base's model class without its weights: names, shapes and structure as transformers has them in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.meta_model import model_on_meta
from hf_recipes.export.bases.read import BaseModel


def meta_model(base: BaseModel) -> Any:
    """A `transformers.PreTrainedModel` on the meta device, of the class that the base's config names.

    Raises:
        UserError: the class cannot be built from the config alone (remote code).
    """
    try:
        return build_on_meta(base.directory, base.config)
    except (ValueError, KeyError, OSError) as error:
        raise UserError(
            f"How transformers names the parameters of '{base.directory}' cannot be told "
            f"({first_line(error)}): an adapter on them can only be merged for a model class that it has."
        ) from None


def build_on_meta(directory: Path, config: Mapping[str, Any]) -> Any:
    """The model of `directory` on the meta device, of the class that `config` (its config.json) names; what
    transformers raises where it has no such class is left to the caller to put into words."""
    import transformers

    loaded = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)
    return model_on_meta(loaded, (config.get("architectures") or [None])[0])
