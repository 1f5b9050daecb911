"""What was measured, as text and as plain values for a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hf_recipes.core.tables import render_table
from hf_recipes.doctor.network.links import Link, slow_sentences
from hf_recipes.doctor.network.measured import Measured


def as_values(measured: Measured) -> dict[str, Any]:
    """Plain values; `read_measured` takes them back. Bytes, seconds, bytes a second."""
    return {
        "backend": measured.backend,
        "hosts": list(measured.hosts),
        "collectives": [
            {
                **asdict(timing),
                "algorithm_bandwidth": timing.algorithm_bandwidth,
                "bus_bandwidth": timing.bus_bandwidth,
            }
            for timing in measured.timings
        ],
        "links": [asdict(link) for link in measured.links],
        "slow": slow_sentences(measured.links),
    }


def as_text(values: Mapping[str, Any]) -> str:
    """Tables of what `as_values` made: collectives by size, then the links by kind, then what is slow."""
    hosts = list(dict.fromkeys(values["hosts"]))
    head = f"{values['backend']}, {len(values['hosts'])} ranks on {len(hosts)} machine{'s' * (len(hosts) > 1)}"
    rows = [
        [
            row["collective"],
            _size(row["size_bytes"]),
            f"{row['seconds'] * 1e6:,.0f}",
            _gigabytes(row["algorithm_bandwidth"]),
            _gigabytes(row["bus_bandwidth"]),
        ]
        for row in values["collectives"]
    ]
    tables = [render_table(["collective", "bytes", "µs", "algbw GB/s", "busbw GB/s"], rows)]
    if links := _links_table(values["links"]):
        tables.append(links)
    return "\n\n".join([f"{head} ({', '.join(hosts)})", *tables, *values["slow"]])


def _links_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The worst and the best link from each machine to each, by bandwidth."""
    links = [Link(**row) for row in rows]
    lines = []
    for source, target in dict.fromkeys((link.source_host, link.target_host) for link in links):
        between = [link for link in links if (link.source_host, link.target_host) == (source, target)]
        worst = min(between, key=lambda link: link.bytes_per_second)
        best = max(link.bytes_per_second for link in between)
        latency = min(link.latency_seconds for link in between)
        lines.append(
            [
                f"{source} → {target}" if source != target else f"inside {source}",
                len(between),
                f"{latency * 1e6:,.0f}",
                _gigabytes(worst.bytes_per_second),
                f"{worst.source} → {worst.target}",
                _gigabytes(best),
            ]
        )
    return render_table(["link", "pairs", "latency µs", "worst GB/s", "ranks", "best GB/s"], lines) if lines else ""


def _size(count: int) -> str:
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g}"
