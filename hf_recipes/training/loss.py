"""The language-model loss without logits: only supervised positions meet the head, in chunks, and the gradient is made
in the forward pass, so nothing of size tokens × vocabulary is kept and the head is not computed twice.

Liger's and Apple's fused losses (Hsu et al. 2024, arXiv:2410.10989; Wijmans et al. 2024, arXiv:2411.09009) do the same
with GPU kernels; this one is plain PyTorch and runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from hf_recipes.core.labels import IGNORED_LABEL

# (hidden (tokens, hidden), head weight (vocabulary, hidden), head bias or None, labels (tokens,)) → summed loss.
Kernel = Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]

CHUNK_TOKENS = 256


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of the cross-entropy of ``hidden @ weight.T + bias`` against labels."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        needs_hidden, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and needs_bias else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[0], CHUNK_TOKENS):
            chunk = slice(start, start + CHUNK_TOKENS)
            logits = linear(hidden[chunk], weight, bias).float()
            normaliser = logits.logsumexp(dim=-1, keepdim=True)
            target = labels[chunk].unsqueeze(-1)
            total += (normaliser - logits.gather(-1, target)).sum()
            if not any((needs_hidden, needs_weight, needs_bias)):
                continue
            # d loss / d logits = softmax - one-hot, in place of the logits.
            grad_logits = logits.sub_(normaliser).exp_()
            grad_logits.scatter_add_(-1, target, torch.full_like(target, -1, dtype=grad_logits.dtype))
            narrow = grad_logits.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[chunk] = (narrow @ weight).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight += narrow.T @ hidden[chunk].to(weight.dtype)
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = (weight.dtype, bias.dtype if bias is not None else None)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (grad_total,) = grads
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        return (
            grad_hidden * grad_total.to(grad_hidden.dtype) if grad_hidden is not None else None,
            (grad_weight * grad_total).to(weight_dtype) if grad_weight is not None else None,
            (grad_bias * grad_total).to(bias_dtype) if grad_bias is not None else None,
            None,
        )


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """Sum of the cross-entropies (nats, float32) of ``hidden @ weight.T + bias``, in chunks of 256 tokens.

    Args:
        hidden: ``(tokens, hidden)``.
        weight: ``(vocabulary, hidden)``; gets a gradient only where it requires one.
        bias: ``(vocabulary,)`` or None.
        labels: ``(tokens,)``, none of them ignored.
    """
    return _ChunkedCrossEntropy.apply(hidden, weight, bias, labels)


def supervised_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, kernel: Kernel = chunked_cross_entropy
) -> Tensor:
    """Sum of next-token cross-entropies (nats) over supervised positions.

    Args:
        hidden: ``(batch, sequence, hidden)`` last hidden states.
        weight: ``(vocabulary, hidden)`` of the head.
        bias: ``(vocabulary,)`` or None.
        labels: ``(batch, sequence)`` token ids, −100 where not trained; shifted here by one, as in `transformers`.
        kernel: What computes it for the supervised positions.

    Returns:
        A float32 scalar; zero, but still connected to `hidden`, where nothing is supervised.
    """
    shifted = labels[:, 1:]
    supervised = shifted != IGNORED_LABEL
    chosen = hidden[:, :-1][supervised]
    if chosen.shape[0] == 0:
        return hidden.float().sum() * 0.0
    return kernel(chosen, weight, bias, shifted[supervised])
