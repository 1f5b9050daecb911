"""The `transformers` model inside an adapter's wrapper."""

from __future__ import annotations

from typing import Any


def base_of(model: Any) -> Any:
    """The model that a PEFT wrapper holds, or `model` itself where it has none."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def body_of(model: Any) -> Any:
    """The model without its head: what gives hidden states."""
    return base_of(model).base_model
