"""Whether a tensor lies on several ranks in parts."""

from __future__ import annotations

from typing import Any

_MARKS = ("ds_id", "_is_flat_param")  # DeepSpeed ZeRO-3, FSDP 1


def is_shard(tensor: Any) -> bool:
    """Whether this rank may hold only a part of `tensor` (a DTensor of FSDP2 or TP, a part of ZeRO-3 or FSDP 1)."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor) or any(hasattr(tensor, mark) for mark in _MARKS)
