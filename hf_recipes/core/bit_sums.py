"""Sums over the bits of tensors: small numbers that differ when the tensors do, taken where the tensors lie."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_WORDS_A_ROW = 1024
_GOLDEN = -7046029254386353131  # 2^64 divided by the golden ratio, as a signed number
_ODD = -4658895280553007687  # a multiplier of splitmix64


def bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Eight bytes at a time, wrapping: no copy is made, as a sum in another type would. Stays on the device."""
    words, tail = _words(tensor)
    return words.sum() + tail.sum(dtype=torch.int64)


def bit_sums(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    """Two sums of each tensor: a plain one, which any one changed bit changes, and one in which every place has a
    weight of its own, which exchanged values change too.

    The same on all devices and for equal bits of any dtype. Two passes over each tensor, one wait for the device.
    """
    if not tensors:
        return {}
    sums = [_two_sums(tensor.detach()) for tensor in tensors.values()]
    device = sums[-1].device
    values = torch.stack([each.to(device) for each in sums]).tolist()
    return {name: (int(plain), int(weighted)) for name, (plain, weighted) in zip(tensors, values, strict=True)}


def _two_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Words lie in rows of 1,024; a place's weight is that of its row plus that of its column, so that the sums of
    rows and columns, which need no copy, are all that has to be weighted."""
    words, tail = _words(tensor)
    whole = words.numel() // _WORDS_A_ROW * _WORDS_A_ROW
    table, rest = words[:whole].view(-1, _WORDS_A_ROW), words[whole:]
    rows = torch.cat([table.sum(1), rest.sum().view(1)])
    columns = table.sum(0)
    columns[: rest.numel()] += rest
    bytes_left = tail.to(torch.int64)
    # Odd and even together are odd: no bit of a word is lost to its weight.
    weighted = (rows * (_numbers(rows, 1) | 1)).sum() + (columns * (_numbers(columns, 2) << 1)).sum()
    weighted += (bytes_left * (_numbers(bytes_left, 3) | 1)).sum()
    return torch.stack([rows.sum() + bytes_left.sum(), weighted])


def _numbers(like: torch.Tensor, series: int) -> torch.Tensor:
    """Numbers of 64 bits without a pattern: of even steps, exchanged words that differ in high bits would be lost."""
    places = torch.arange(like.numel(), device=like.device) * 4 + series
    mixed = places * _GOLDEN
    mixed = (mixed ^ (mixed >> 30)) * _ODD
    return mixed ^ (mixed >> 27)


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor's bytes in words of 64 bits, and the bytes that are left, without a copy where it lies in order."""
    flat = tensor.reshape(-1)
    at_once = 8 // flat.element_size()
    if at_once == 0:  # complex numbers of 16 bytes
        flat, at_once = flat.view(torch.int64), 1
    if flat.storage_offset() % at_once:  # a view on an odd place of some flat buffer
        flat = flat.clone()
    whole = flat.numel() // at_once * at_once
    return flat[:whole].view(torch.int64), flat[whole:].view(torch.uint8)
