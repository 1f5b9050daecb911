"""Run a causal language model up to its head, for a loss that computes the head itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator


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
