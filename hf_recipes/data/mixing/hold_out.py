"""Which rows of a stream are for evaluation, by nothing but their own hash: copies of a row lie on one side. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def held_out(groups: Array, share: float, seed: int) -> Array:
    """Flag the rows that are held out.

    Args:
        groups: uint64 hashes, equal for rows that must lie on one side.
        share: part held out, on average over groups: of n groups it is off by about sqrt(n · share · (1 - share)).
        seed: another seed, other rows. A larger share holds out the same rows and more.
    """
    if share >= 1:
        return np.ones(len(groups), bool)
    salt = hashlib.blake2b(f"hold out {seed}".encode(), digest_size=8).digest()
    return _mixed(groups ^ np.uint64(int.from_bytes(salt, "little"))) < np.uint64(int(share * 2**64))


def _mixed(numbers: Array) -> Array:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection that leaves no pattern of its input."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
