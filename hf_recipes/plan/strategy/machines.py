"""The machines a job may take, as the figures that decide between strategies."""

from __future__ import annotations

from dataclasses import dataclass

# What collectives and copies reach of a link's figure: NCCL's bus bandwidth on NVLink and InfiniBand, and pinned copies
# over PCIe, are commonly measured between 70 % and 85 % of it.
LINK_EFFICIENCY = 0.75


@dataclass(frozen=True)
class Machines:
    """Equal devices in equal nodes; all figures in bytes, bytes a second or FLOP/s, and of one device or node.

    Attributes:
        memory_bytes: of one device, usable by programs.
        flops: dense FLOP/s of one device in the dtype computed in.
        bandwidth: of a device's memory.
        link: between devices of a node, both directions together; 0 without NVLink or the like.
        host_link: device to host, one direction (PCIe); 0 where the device is the host (CPU ranks), to which nothing
            can be offloaded.
        per_node: devices of a node.
        nodes: machines.
        network: between nodes, one direction, of a whole node (8 × 400 Gb/s are 4e11; 10 GbE is 1.25e9).
        host_memory_bytes: of a node, for what is offloaded; None: not known, and not checked.
    """

    memory_bytes: float
    flops: float
    bandwidth: float
    link: float = 0.0
    host_link: float = 25e9
    per_node: int = 1
    nodes: int = 1
    network: float = 1.25e9
    host_memory_bytes: float | None = None

    @property
    def ranks(self) -> int:
        """Devices in all."""
        return self.per_node * self.nodes

    @property
    def inside(self) -> float:
        """Bytes a second that one device sends to another of its node. Without a link of their own they talk over PCIe,
        through the host, where each byte goes up and down again; CPU ranks copy in memory."""
        return LINK_EFFICIENCY * (self.link or self.host_link or self.bandwidth) / 2

    @property
    def across(self) -> float:
        """Bytes a second that a ring through all devices passes on: the slower of link and network."""
        return self.inside if self.nodes == 1 else min(self.inside, LINK_EFFICIENCY * self.network)
