"""Which code computes head and cross-entropy: plain PyTorch everywhere, or on a GPU the kernels of cut-cross-entropy
(Wijmans et al. 2024, arXiv:2411.09009) or Liger (Hsu et al. 2024, arXiv:2410.10989) where they are installed.

A kernel is taken only after it has been tried on this head: it must give the loss and the gradient of plain PyTorch.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main
from hf_recipes.training.loss import Kernel, chunked_cross_entropy

_TRIAL_TOKENS = 512
_TRIALS = 3
# bf16 products of another order of summation differ by about 2⁻⁸ an element, far less in a sum over tokens.
_LOSS_TOLERANCE, _GRADIENT_TOLERANCE = 2e-3, 2e-2


def _liger() -> Kernel:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    fused = LigerFusedLinearCrossEntropyLoss(reduction="sum")
    return lambda hidden, weight, bias, labels: fused(weight.to(hidden.dtype), hidden, labels, bias)


def _cut_cross_entropy() -> Kernel:
    from cut_cross_entropy import linear_cross_entropy

    return lambda hidden, weight, bias, labels: linear_cross_entropy(
        hidden, weight.to(hidden.dtype), labels, bias=bias, reduction="sum"
    )


# Recipe word → module that must be installed, name on the package index, loader.
_KERNELS: dict[str, tuple[str, str, Callable[[], Kernel]]] = {
    "cce": ("cut_cross_entropy", "cut-cross-entropy", _cut_cross_entropy),
    "liger": ("liger_kernel", "liger-kernel", _liger),
}


def choose_kernel(asked: str, head: Any, autocast_dtype: torch.dtype | None = None) -> Kernel:
    """The kernel a recipe's ``loss_kernel`` stands for on this head; to be called on every rank.

    Args:
        asked: ``torch``, ``liger``, ``cce``, or ``auto``: the fastest installed one that agrees with PyTorch.
        head: The output head on its device.
        autocast_dtype: What the trainer autocasts to; None without autocast.

    Raises:
        UserError: a kernel asked for by name is not installed, has no GPU to run on, or gives another loss.
    """
    if asked == "torch" or (asked == "auto" and (type(head) is not nn.Linear or head.weight.device.type == "cpu")):
        return chunked_cross_entropy
    if asked != "auto":
        _require(asked, head)
    dtype = autocast_dtype or head.weight.dtype
    # Rank 0 decides: ranks that took other kernels would round otherwise.
    name = from_main(lambda: _fastest(asked, head, dtype))
    return chunked_cross_entropy if name == "torch" else _KERNELS[name][2]()


def _require(asked: str, head: Any) -> None:
    module, package, _ = _KERNELS[asked]
    if type(head) is not nn.Linear or head.weight.device.type == "cpu":
        raise UserError(f"loss_kernel: {asked} runs on a GPU and an unsharded head only: leave it at auto.")
    if importlib.util.find_spec(module) is None:
        raise UserError(f"loss_kernel: {asked} is not installed: run `pip install {package}`, or leave it at auto.")


def _fastest(asked: str, head: nn.Linear, dtype: torch.dtype) -> str:
    names = [name for name, (module, _, _) in _KERNELS.items() if importlib.util.find_spec(module)]
    candidates = {name: _KERNELS[name][2]() for name in names if asked in ("auto", name)}
    if not candidates:
        return "torch"
    found = compare_kernels(candidates, head, dtype)
    for name, verdict in found.items():
        if isinstance(verdict, str) and asked == name:
            raise UserError(f"loss_kernel: {name} cannot be used here: {verdict}; leave it at auto.")
        if isinstance(verdict, str):
            logger.warning("Loss kernel %s is left out: %s.", name, verdict)
    seconds = {name: verdict for name, verdict in found.items() if not isinstance(verdict, str)}
    best = asked if asked != "auto" else min(seconds, key=seconds.__getitem__)
    told = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in seconds.items())
    logger.info("Loss kernel: %s (%d tokens: %s).", best, _TRIAL_TOKENS, told)
    return best


def compare_kernels(candidates: dict[str, Kernel], head: nn.Linear, dtype: torch.dtype) -> dict[str, float | str]:
    """Try kernels on random hidden states against plain PyTorch.

    Args:
        candidates: Kernels by name.
        head: The output head; its weight is used as it is.
        dtype: Of the hidden states.

    Returns:
        By name, with ``torch`` among them: seconds of a forward and backward pass (the best of three), or what is
        wrong.
    """
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(_TRIAL_TOKENS, head.in_features, generator=generator).to(head.weight.device, dtype)
    labels = torch.randint(head.out_features, (_TRIAL_TOKENS,), generator=generator).to(head.weight.device)
    seconds, loss, gradient = _time(chunked_cross_entropy, hidden, head, labels)
    found: dict[str, float | str] = {"torch": seconds}
    for name, kernel in candidates.items():
        try:
            seconds, its_loss, its_gradient = _time(kernel, hidden, head, labels)
        except Exception as error:  # a kernel that does not compile for this device fails in its own way
            found[name] = f"{type(error).__name__}: {first_line(str(error))}"
            continue
        apart = abs(its_loss - loss) / abs(loss)
        gradient_apart = float((its_gradient - gradient).norm() / gradient.norm())
        wrong = apart > _LOSS_TOLERANCE or not gradient_apart <= _GRADIENT_TOLERANCE
        found[name] = f"its loss is {its_loss:.4f}, not {loss:.4f}, or its gradient differs" if wrong else seconds
    return found


def _time(kernel: Kernel, hidden: Tensor, head: nn.Linear, labels: Tensor) -> tuple[float, float, Tensor]:
    best, leaf = float("inf"), hidden.clone().requires_grad_()
    for _ in range(_TRIALS):
        leaf.grad = None
        _wait(hidden.device)
        started = time.perf_counter()
        loss = kernel(leaf, head.weight.detach(), None if head.bias is None else head.bias.detach(), labels)
        loss.backward()
        _wait(hidden.device)
        best = min(best, time.perf_counter() - started)
    assert leaf.grad is not None
    return best, loss.item(), leaf.grad.float()


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
