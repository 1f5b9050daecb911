"""How a job lies over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"]


@dataclass(frozen=True)
class Layout:
    """Parallelism of a job.

    Attributes:
        ranks: devices in all.
        nodes: machines they stand in, evenly.
        sharding: of the data-parallel ranks: ``none`` for one rank.
        tensor, context, pipeline: degrees; the data-parallel degree is `ranks` over their product.
        offload_optimizer: optimizer states (and its step) on the host.
        offload_weights: sharded weights on the host.
    """

    ranks: int = 1
    nodes: int = 1
    sharding: Sharding = "none"
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    offload_optimizer: bool = False
    offload_weights: bool = False

    @property
    def data_parallel(self) -> int:
        """Ranks that see different rows."""
        return self.ranks // (self.tensor * self.context * self.pipeline)
