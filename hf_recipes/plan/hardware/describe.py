"""A measured machine as text."""

from __future__ import annotations

from hf_recipes.core.tables import render_table
from hf_recipes.plan.hardware.here import Device, Machine


def describe_machine(machine: Machine) -> str:
    """Cores, memory, disk, and a row for each device: what it has, what it was measured at, what the catalogue says."""
    head = (
        f"{machine.cores} cores, {_gib(machine.ram_bytes)} of memory ({_gib(machine.ram_free_bytes)} free), "
        f"files written and synced at {machine.disk_write / 1e9:.2f} GB/s"
    )
    headers = ("device", "memory", "free", "TFLOP/s measured", "GB/s in memory", "GB/s from host", "catalogue")
    return f"{head}\n\n{render_table(headers, [_row(device) for device in machine.devices])}"


def _row(device: Device) -> tuple[str, ...]:
    rates = ", ".join(f"{dtype} {flops / 1e12:.3g}" for dtype, flops in device.flops.items())
    known = device.catalogue.key if device.catalogue else "nothing"
    sizes = (_gib(device.memory_bytes), _gib(device.free_bytes))
    return (device.name, *sizes, rates, f"{device.bandwidth / 1e9:.3g}", f"{device.host_link / 1e9:.3g}", known)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
