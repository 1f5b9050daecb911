"""What a schedule runs: a stage's forward, and on the last stage the loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hf_recipes.pipeline.cut import Part

# (hidden states, head weight, head bias, labels) → summed loss over the supervised tokens.
SummedLoss = Callable[[Tensor, Tensor, "Tensor | None", Tensor], Tensor]


class Stage(nn.Module):
    """Token ids in on the first stage, hidden states elsewhere; hidden states out, after the norm on the last.

    Positions and masks are made by the model itself, as for a whole one: rows padded on the right need no mask.

    Args:
        model: of `stage_model`, with or without an adapter around.
        part: what it holds.
        dtype: of the hidden states between stages.
        autocast_dtype: what is computed in; None without autocast.
        loss: sums the loss of the last stage; the head is read, not called.
    """

    def __init__(
        self,
        model: Any,
        part: Part,
        dtype: torch.dtype,
        autocast_dtype: torch.dtype | None,
        loss: SummedLoss,
    ) -> None:
        super().__init__()
        self.model, self.part, self.dtype = model, part, dtype
        self._autocast_dtype, self._loss = autocast_dtype, loss

    @property
    def base(self) -> Any:
        """The model without PEFT's wrapper."""
        return self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return int(self.base.config.hidden_size)

    def forward(self, given: Tensor) -> Tensor:
        """``(rows, tokens)`` ids or ``(rows, tokens, hidden)`` states → states."""
        name = "input_ids" if self.part.first else "inputs_embeds"
        with self._autocast(given.device):
            hidden = self.base.model(**{name: given}, use_cache=False).last_hidden_state
        return hidden.to(self.dtype)

    def summed_loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Summed cross-entropy of the supervised tokens of a micro-batch (nats, fp32); on the last stage only."""
        head = self.base.lm_head
        with self._autocast(hidden.device):
            return self._loss(hidden, head.weight, head.bias, labels)

    def _autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Around forward and loss alone: what a backward pass does is decided there."""
        on = self._autocast_dtype is not None
        return torch.autocast(device.type, self._autocast_dtype or torch.bfloat16, enabled=on)
