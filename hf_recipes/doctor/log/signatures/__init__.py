"""All known messages by name, in groups of one theme a file."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature
from hf_recipes.doctor.log.signatures import (
    arguments,
    cuda,
    data,
    dtypes,
    hub,
    loading,
    memory,
    numbers,
    ranks,
    sharding,
    system,
    tokens,
)

GROUPS: dict[str, dict[str, Signature]] = {
    "Memory and disk": memory.SIGNATURES,
    "Ranks and the network": ranks.SIGNATURES,
    "Sharding and wrapping": sharding.SIGNATURES,
    "Numbers": numbers.SIGNATURES,
    "Dtypes and gradients": dtypes.SIGNATURES,
    "Tokenizer and template": tokens.SIGNATURES,
    "Data": data.SIGNATURES,
    "Loading, saving, resuming": loading.SIGNATURES,
    "The Hub": hub.SIGNATURES,
    "CUDA and kernels": cuda.SIGNATURES,
    "Arguments and versions": arguments.SIGNATURES,
    "The process and its machine": system.SIGNATURES,
}

SIGNATURES: dict[str, Signature] = {name: one for group in GROUPS.values() for name, one in group.items()}
assert len(SIGNATURES) == sum(map(len, GROUPS.values()))
