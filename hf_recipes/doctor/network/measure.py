"""Measures the collectives of the process group there is, and the links between its ranks, one at a time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hf_recipes.core.ranks import barrier, gather
from hf_recipes.doctor.network.curve import COLLECTIVES, Collective, Timing
from hf_recipes.doctor.network.links import Link, pairs_to_measure, slow_links
from hf_recipes.doctor.network.measured import Measured

_SECONDS = 0.1  # for each batch of a collective at one size, and for each direction of a link
_BATCHES = 3  # of which the best counts: what disturbs a machine only ever makes it slower
_MOST_TIMES = 50
_LONG_SECONDS = 2.0  # for one operation: larger messages are then known by its speed
_LOOKS = 3  # at a link before it is called slow
_LINK_BYTES = 4 << 20
_PINGS = 20
_VALUE_BYTES = 4


def measure_network(message_sizes: Sequence[int]) -> Measured:
    """Measure all collectives at all sizes, then the links; to be called on every rank of a group of at least two.

    Args:
        message_sizes: bytes of the whole array (S of nccl-tests), rounded up to what the ranks share evenly.
    """
    device = group_device()
    hosts = gather(socket.gethostname())
    _time("all_reduce", 1 << 20, device)  # connections and buffers are made at the first messages
    timings = [
        timing for collective in COLLECTIVES for timing in _sweep(collective, _even(message_sizes, len(hosts)), device)
    ]
    links = [link for pair in pairs_to_measure(hosts) for link in _link(pair, hosts, device)]
    for _ in range(_LOOKS - 1):
        links = _look_again(links, hosts, device)
    return Measured(dist.get_backend(), tuple(hosts), tuple(timings), tuple(links))


def group_device() -> torch.device:
    """What this rank's collectives work on: the GPU of its place on the machine under nccl, else the CPU."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def _even(message_sizes: Sequence[int], ranks: int) -> list[int]:
    unit = ranks * _VALUE_BYTES
    return sorted({-(-size // unit) * unit for size in message_sizes})


def _sweep(collective: Collective, message_sizes: Sequence[int], device: torch.device) -> Iterator[Timing]:
    """One collective by rising size, two sizes at least, until an operation takes long."""
    for number, size in enumerate(message_sizes):
        timing = _time(collective, size, device)
        yield timing
        if number and timing.seconds > _LONG_SECONDS:
            return


def _time(collective: Collective, size: int, device: torch.device) -> Timing:
    ranks = dist.get_world_size()
    whole = torch.ones(size // _VALUE_BYTES, device=device)
    part = whole[: len(whole) // ranks].clone()
    run = _operations(whole, part)[collective]
    once = max(gather(_seconds(run, 1, device)))
    times = min(_MOST_TIMES, max(2, int(_SECONDS / once)))
    batches = gather([_seconds(run, times, device) for _ in range(_BATCHES if once < _LONG_SECONDS else 1)])
    return Timing(collective, size, min(max(batch) for batch in zip(*batches, strict=True)), ranks)


def _operations(whole: torch.Tensor, part: torch.Tensor) -> dict[Collective, Callable[[], Any]]:
    # torch 2.13 renames the two; the old names warn there, the new ones are not in 2.11.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        "all_reduce": lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX),  # a sum would grow without end
        "all_gather": lambda: all_gather(whole, part),
        "reduce_scatter": lambda: reduce_scatter(part, whole, op=dist.ReduceOp.MAX),
        "broadcast": lambda: dist.broadcast(whole, src=0),
    }


def _seconds(run: Callable[[], Any], times: int, device: torch.device) -> float:
    """The mean of so many runs."""
    _wait_for(device)
    began = time.perf_counter()
    for _ in range(times):
        run()
    _wait_for(device)
    return (time.perf_counter() - began) / times


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _link(pair: tuple[int, int], hosts: Sequence[str], device: torch.device) -> list[Link]:
    """Both directions of one pair, while all other ranks wait."""
    barrier()
    low, high = pair
    latency = _from(low, _ping(low, high, device))
    links = []
    for source, target in ((low, high), (high, low)):
        rate = _from(source, _push(source, target, device))
        links.append(Link(source, target, hosts[source], hosts[target], rate, latency))
    return links


def _look_again(links: list[Link], hosts: Sequence[str], device: torch.device) -> list[Link]:
    """Links that look slow, measured once more; the better of the two counts."""
    doubtful = sorted({(min(ends), max(ends)) for ends in ((link.source, link.target) for link in slow_links(links))})
    again = {(link.source, link.target): link for pair in doubtful for link in _link(pair, hosts, device)}
    return [
        max(link, again.get((link.source, link.target), link), key=lambda one: one.bytes_per_second) for link in links
    ]


def _from(rank: int, value: float) -> float:
    """The value that one rank has, on all."""
    return float(gather(value)[rank])


def _ping(low: int, high: int, device: torch.device) -> float:
    """Half of the time of a small message there and back, the best of several; zero on the other ranks."""
    here, message = dist.get_rank(), torch.zeros(1, device=device)
    if here not in (low, high):
        return 0.0
    best = float("inf")
    for _ in range(_PINGS):
        began = time.perf_counter()
        if here == low:
            dist.send(message, high)
            dist.recv(message, high)
        else:
            dist.recv(message, low)
            dist.send(message, low)
        _wait_for(device)
        best = min(best, time.perf_counter() - began)
    return best / 2


def _push(source: int, target: int, device: torch.device) -> float:
    """Bytes a second of a large message that is answered by a small one, the best of several; zero elsewhere."""
    here = dist.get_rank()
    if here not in (source, target):
        return 0.0
    load, answer = torch.zeros(_LINK_BYTES // _VALUE_BYTES, device=device), torch.zeros(1, device=device)
    best, until, times = float("inf"), time.perf_counter() + _SECONDS, 0
    while True:
        began = time.perf_counter()
        if here == source:
            answer[0] = float(times < 2 or began < until)  # whether another one follows
            load[0] = answer[0]
            dist.send(load, target)
            dist.recv(answer, target)
        else:
            dist.recv(load, source)
            answer[0] = load[0]
            dist.send(answer, source)
        goes_on = bool(answer[0].item())
        times += 1
        best = min(best, time.perf_counter() - began)
        if not goes_on:
            return _LINK_BYTES / best
