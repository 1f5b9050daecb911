"""What a model's forward passes show of a step: losses, counts, the first loss that is not finite. Never syncs."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from hf_recipes.callbacks.reading import GRADIENT, LOSS, NONE_BAD, code_of
from hf_recipes.core import ranks
from hf_recipes.core.labels import IGNORED_LABEL


class ForwardProbe:
    """Hooks onto a model and sums up its training forward passes on the device until `start_step`.

    Attributes:
        micro_batch: the number, from 0, under which bad losses are flagged; the owner counts it.
        keep_micro_batches: keep references to what forward was given, in `micro_batches`, until the next step's first.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self.keep_micro_batches = False
        self.micro_batches: list[dict[str, Any]] = []
        self._device = device
        self._hook = model.register_forward_hook(self._see, with_kwargs=True)
        self.start_step()

    def remove(self) -> None:
        """Leave the model, and let go of its inputs."""
        self._hook.remove()
        self.micro_batches = []

    def start_step(self) -> None:
        """Forget the sums. The kept micro-batches stay until the next forward pass."""
        self.micro_batch = self.calls = self.weighted_calls = self.mean_calls = 0
        self.rows = self.positions = 0
        self.first_bad = self._zero() + NONE_BAD
        self.weighted_loss, self.mean_loss, self.supervised_tokens = self._zero(), self._zero(), self._zero()

    def see_loss(self, loss: torch.Tensor, *, weighted: bool) -> None:
        """Take one micro-batch's loss; `weighted`: it was divided by the items of the whole step, not by its own."""
        loss = loss.detach().float().mean()
        if weighted:
            self.weighted_loss = self.weighted_loss + loss
            self.weighted_calls += 1
        else:
            self.mean_loss = self.mean_loss + loss
            self.mean_calls += 1
        self.flag(loss, LOSS)

    def see_labels(self, labels: torch.Tensor) -> None:
        """Take the labels of a micro-batch whose loss is computed outside the model."""
        self.supervised_tokens = self.supervised_tokens + (labels.detach() != IGNORED_LABEL).sum()
        if self.keep_micro_batches and self.micro_batches:
            self.micro_batches[-1]["labels"] = labels

    def flag(self, value: torch.Tensor, what: int, *, of_all_ranks: bool = False) -> None:
        """Remember this micro-batch as bad if `value` is not finite and none before it was; `of_all_ranks`: it was
        averaged over them, so that a bad loss of any rank tells more, and comes first."""
        assert what in (LOSS, GRADIENT)
        rank = ranks.world_size() - 1 if of_all_ranks else ranks.rank()
        code = code_of(self.micro_batch, rank, ranks.world_size(), what)
        bad = torch.where(value.isfinite().all(), NONE_BAD, code).to(self.first_bad)
        self.first_bad = torch.minimum(self.first_bad, bad)

    # A side effect on purpose: kept out of a compiled model's graph.
    @torch.compiler.disable
    def _see(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not module.training:
            return
        inputs = _named(module, args, kwargs)
        self._count(inputs)
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor):
            self.see_loss(loss, weighted=inputs.get("num_items_in_batch") is not None)
        if isinstance(labels := inputs.get("labels"), torch.Tensor):
            self.see_labels(labels)
        self.calls += 1

    def _count(self, inputs: dict[str, Any]) -> None:
        if self.calls == 0:
            self.micro_batches = []
        if self.keep_micro_batches:
            self.micro_batches.append(inputs)
        ids = inputs.get("input_ids", inputs.get("inputs_embeds"))
        if isinstance(ids, torch.Tensor):
            self.rows += ids.shape[0]
            self.positions += ids.shape[:2].numel()

    def _zero(self) -> torch.Tensor:
        return torch.zeros((), device=self._device)


def _named(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Forward's arguments by name."""
    if not args:
        return dict(kwargs)
    return dict(inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments)
