"""Whether a model's logits are one matrix product, which a loss of its own, and a plan of it, may count on."""

from __future__ import annotations

from typing import Any

from torch import nn

# Models that do more between head and logits than a product.
_LOGIT_TRANSFORMS = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)


def has_plain_head(model: Any) -> bool:
    """Whether the logits of this `transformers` model are ``hidden @ head.weight.T + head.bias`` and nothing else."""
    head = model.get_output_embeddings()
    config = model.config.get_text_config()
    plain = type(head) is nn.Linear and type(head.weight) is nn.Parameter  # no DTensor, no adapter on the head
    plain = plain and not hasattr(head.weight, "ds_id")  # ZeRO-3 gathers a weight only for its module's own forward
    return plain and not any(getattr(config, name, None) for name in _LOGIT_TRANSFORMS)
