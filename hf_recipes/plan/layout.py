"""How a job lies over devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"]

# What the written DeepSpeed configs say, in elements: how much is reduced, fetched ahead and kept gathered at a time.
# DeepSpeed's own defaults (5e8, 5e7, 1e9) take gigabytes to save a few messages; 5e7 elements are 100 MB in bf16, by
# far enough to fill a link.
REDUCE_BUCKET = 50_000_000
PREFETCH_BUCKET = 50_000_000
LIVE_PARAMETERS = 200_000_000


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
        replicas: groups that each hold the whole model in shards (hybrid sharding: usually one group a node); 1 shards
            it over all data-parallel ranks.
    """

    ranks: int = 1
    nodes: int = 1
    sharding: Sharding = "none"
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    offload_optimizer: bool = False
    offload_weights: bool = False
    replicas: int = 1

    @property
    def data_parallel(self) -> int:
        """Ranks that see different rows."""
        return self.ranks // (self.tensor * self.context * self.pipeline)

    @property
    def shards(self) -> int:
        """Ranks that share one copy of what is sharded."""
        return self.data_parallel // self.replicas

    @property
    def ranks_per_node(self) -> int:
        """Devices of one machine."""
        return self.ranks // self.nodes

    @property
    def one_replica(self) -> Layout:
        """The layout of one group that holds the whole model: a rank of it needs the same memory."""
        if self.replicas == 1:
            return self
        return replace(self, ranks=self.ranks // self.replicas, nodes=max(1, self.nodes // self.replicas), replicas=1)
