"""Leaving random numbers as they were found: what only looks must not be noticed by the training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Within, Python's, NumPy's and torch's CPU generators may be drawn from; afterwards they are as before."""
    import numpy
    import torch

    python, of_numpy = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(of_numpy)
