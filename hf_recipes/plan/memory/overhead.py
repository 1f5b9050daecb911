"""What a device holds besides tensors: the driver's context, libraries' workspaces, the allocator's leavings."""

from __future__ import annotations

from hf_recipes.plan.layout import Layout

MIB = 2**20

# The CUDA context with PyTorch's kernels loaded: 300 to 500 MiB by driver and card (`nvidia-smi` over an idle process;
# Gao et al. 2020, "Estimating GPU memory consumption of deep learning models", count it as a constant too).
CONTEXT_BYTES = 450 * MIB
# NCCL's channels, a few MiB for each of up to 32, and its own kernels.
NCCL_BYTES = 400 * MIB
# One for each of the forward and the backward thread: ":4096:2:16:8" KiB of `CUBLAS_WORKSPACE_CONFIG` (PyTorch's
# default before Hopper, where it is 32 MiB).
CUBLAS_BYTES = 2 * (2 * 4096 + 8 * 16) * 1024
# PyTorch's caching allocator cuts blocks out of segments of 20 MiB or of a tensor's own size: with sizes that change
# from batch to batch a part of them stays unused.
RESERVED_SHARE = 0.04


def context_bytes(layout: Layout, device: str) -> float:
    """Outside the allocator."""
    if device != "cuda":
        return 0.0
    return CONTEXT_BYTES + (NCCL_BYTES if layout.ranks > 1 else 0)


def workspace_bytes(device: str) -> float:
    """Inside the allocator, for matrix products."""
    return float(CUBLAS_BYTES) if device == "cuda" else 0.0


def reserved_share(device: str) -> float:
    """What the allocator holds beyond live tensors, as a share of them."""
    return RESERVED_SHARE if device == "cuda" else 0.0
