"""Tied weights are saved once, under every strategy."""

from __future__ import annotations

from typing import Any

from torch import nn


def leave_tied_out_of_saves(model: nn.Module) -> None:
    """Let `save_pretrained` write a tensor that two names share under one of them.

    transformers finds tied weights by their memory. FSDP2, ZeRO-1 and ZeRO-2 hand it copies, each gathered apart, and
    the head would be written beside the embedding: a larger file than one process writes, with another list of tensors.

    Args:
        model: of transformers; others, and names that do not share their tensor, are left as they are.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    held = dict(model.named_parameters(remove_duplicate=False))
    shared = [name for name, source in tied.items() if name in held and held[name] is held.get(source)]
    writer: Any = model
    if new := set(shared) - set(getattr(writer, "_keys_to_ignore_on_save", None) or ()):
        writer._keys_to_ignore_on_save = [*(writer._keys_to_ignore_on_save or ()), *sorted(new)]
