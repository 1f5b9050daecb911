"""The counts as Markdown."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from communication_rows.cells import Cell
from communication_rows.theory import TALK_BYTES, Sent, paper_bytes, reckoned_bytes, ring_bytes, sent


def volumes(kept: Mapping[str, Any], model: Path) -> str:
    """Bytes a rank and step: counted, by the paper, by the doctor."""
    head = ["strategy", "ranks", "method", "passes", "else", "counted, MB", "paper, MB", "of it", "doctor, MB", "of it"]
    shown = [f"| {' | '.join(head)} |", "|---|---:|---|---:|---|" + "---:|" * 5]
    tokens = max(found["batch"][1] for found in kept.values() if found["batch"])  # pipelines do not tell
    for found in kept.values():
        cell = Cell(**found["cell"])
        if _by_bucket(cell):
            continue
        counted = mean_sent(found).bytes
        theories = [theory(cell, model, tokens) for theory in (paper_bytes, reckoned_bytes)]
        figures = [text for each in theories for text in (_megabytes(each), _off(counted, each))]
        parts = [cell.strategy, cell.ranks, cell.method, cell.passes, _else(cell), _megabytes(counted), *figures]
        shown.append(f"| {' | '.join(map(str, parts))} |")
    return "\n".join(shown)


def messages(kept: Mapping[str, Any]) -> str:
    """How many messages a step is sent in, and of what kind, on the first rank."""
    shown = ["| run | messages | largest, MB | kinds | and talk |", "|---|---:|---:|---|---|"]
    for name, found in kept.items():
        first = found["messages"][0]
        whole = sent(first)
        kinds: dict[str, int] = defaultdict(int)
        for collective, size, _, dtype, ranks, number in first:
            if size >= TALK_BYTES:
                kinds[f"{collective} of {ranks} in {dtype}"] += number
        told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        largest = max((size for _, size, *_ in first), default=0)
        talk = f"{whole.talk_messages}, {whole.talk_bytes / 1e3:.1f} kB"
        shown.append(f"| {name} | {whole.messages} | {_megabytes(largest)} | {told} | {talk} |")
    return "\n".join(shown)


def wire(found: Mapping[str, Mapping[str, float]]) -> str:
    """What gloo sends, by the network interface: bytes a rank over bytes of the whole tensor."""
    shown = ["| collective | ranks | a ring's | on the wire |", "|---|---:|---:|---:|"]
    for ranks, shares in found.items():
        for collective, share in shares.items():
            shown.append(f"| {collective} | {ranks} | {ring_bytes(collective, 1, int(ranks)):.2f} | {share:.3f} |")
    return "\n".join(shown)


def mean_sent(found: Mapping[str, Any]) -> Sent:
    """The mean of all ranks: in a pipeline they send different things."""
    each = [sent(rank) for rank in found["messages"]]
    return Sent(
        sum(one.bytes for one in each) / len(each),
        round(sum(one.messages for one in each) / len(each)),
        sum(one.talk_bytes for one in each) / len(each),
        round(sum(one.talk_messages for one in each) / len(each)),
    )


def _by_bucket(cell: Cell) -> bool:
    """Whether it is there for the number of messages alone."""
    return bool(cell.keys) or "reduce_bucket_size" in cell.zero


def _else(cell: Cell) -> str:
    words = [] if cell.dtype == "fp32" else [cell.dtype]
    words += ["checkpointing"] if cell.checkpointing else []
    words += [f"{name} {size}" for name, size in cell.sizes.items()]
    return ", ".join([*words, *(f"`{name}: {json.dumps(value)}`" for name, value in cell.zero.items())])


def _megabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e6:.2f}"


def _off(counted: float, theory: float | None) -> str:
    return "" if not theory else f"{counted / theory - 1:+.1%}"
