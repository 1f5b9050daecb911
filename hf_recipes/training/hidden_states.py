"""Run a causal language model up to its head, for a loss that computes the head itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def last_hidden_states(model: nn.Module, head: nn.Linear, inputs: Mapping[str, Any]) -> Tensor:
    """Call `model` (wrapped or not) on `inputs` without labels and return what its `head` would be given.

    Returns:
        ``(rows, length, hidden)``, in the dtype the model computes in.
    """
    with _passing_through(head):
        return model(**{name: values for name, values in inputs.items() if name != "labels"}, use_cache=False).logits


@contextmanager
def _passing_through(head: nn.Linear) -> Iterator[None]:
    """Within, the head hands on what it is given. The instance attribute hides the class's method, so names and hooks
    of the model stay as they are."""
    head.forward = _identity  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del head.forward


def _identity(hidden: Tensor) -> Tensor:
    return hidden
