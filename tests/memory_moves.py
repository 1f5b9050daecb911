"""What is taken and given back on the CPU while something runs, as torch's profiler sees it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import accumulate


def memory_moves(run: Callable[[], object]) -> list[int]:
    """Bytes taken (positive) and given back (negative) while `run` runs, in order of time."""
    import torch

    # The profiler knows the blocks of what was profiled before: such garbage, collected within, would count here.
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events()
    moves = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return [size for _, size in moves]


def highest_memory(run: Callable[[], object]) -> int:
    """Bytes alive at the fullest moment of `run`, beside what was there before."""
    return max(accumulate(memory_moves(run)), default=0)
