"""Who is who: the ranks of a run as pipelines × replicas × shards of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True)
class PipelineRanks:
    """The place of this rank among all, and the groups it talks in.

    Attributes:
        mesh: of dimensions ``pp`` (outermost: it sends least), ``dp``, ``tp`` (innermost: within a node).
        ends: the first and the last stage of this rank's pipeline as a group; None for other stages, or a single one.
    """

    mesh: DeviceMesh
    ends: Any

    @property
    def stage(self) -> int:
        """Which stage this rank computes."""
        return int(self.mesh.get_local_rank("pp"))

    @property
    def stages(self) -> int:
        """How many there are."""
        return int(self.mesh.size(0))

    @property
    def replica(self) -> int:
        """Which of the pipelines, each of which sees other rows."""
        return int(self.mesh.get_local_rank("dp"))

    @property
    def replicas(self) -> int:
        """How many there are."""
        return int(self.mesh.size(1))

    @property
    def shard(self) -> int:
        """Which part of each layer's matrices."""
        return int(self.mesh.get_local_rank("tp"))

    @property
    def shards(self) -> int:
        """How many there are."""
        return int(self.mesh.size(2))

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank makes the loss."""
        return self.stage == self.stages - 1

    def group(self, dimension: str) -> dist.ProcessGroup:
        """The ranks that differ from this one in `dimension` (``pp``, ``dp``, ``tp``) alone."""
        return self.mesh.get_group(dimension)


def arrange_ranks(stages: int, shards: int, device_type: str) -> PipelineRanks:
    """Arrange all ranks; those that stages and shards leave are replicas. To be called on every rank.

    Args:
        stages: of a pipeline.
        shards: ranks that share a layer; their product with `stages` divides the number of ranks.
        device_type: ``cpu``, ``cuda``, …
    """
    replicas = dist.get_world_size() // (stages * shards)
    mesh = init_device_mesh(device_type, (stages, replicas, shards), mesh_dim_names=("pp", "dp", "tp"))
    ends, me = None, dist.get_rank()
    if stages > 1:
        for pair in mesh.mesh[[0, -1]].reshape(2, -1).T.tolist():
            group = dist.new_group(pair)
            ends = group if me in pair else ends
    return PipelineRanks(mesh, ends)
