"""What may keep a run from starting: devices held by others, locked builds, ranks that cannot meet, the Hub."""

from __future__ import annotations

from collections.abc import Iterator

from hf_recipes.doctor.environment.facts import Facts
from hf_recipes.doctor.findings import Finding

_LOCK_SECONDS = 600.0  # no operation takes longer to build
_HOLDER_SECONDS = 60.0


def on_driver(facts: Facts) -> Iterator[Finding]:
    """Processes of earlier runs that still hold a device."""
    for holder in facts.driver.holders:
        if holder.seconds >= _HOLDER_SECONDS:
            told = f"process {holder.pid} ({holder.name}) has GPU {', '.join(holder.devices)} open"
            cure = "if it is what is left of an earlier run, end it: kill " + str(holder.pid)
            yield Finding("note", "devices", told, cure)


def on_builders(facts: Facts) -> Iterator[Finding]:
    """What DeepSpeed's operations and torch.compile are built with."""
    builders = facts.builders
    for lock in builders.locks:
        age = f"{lock.age_seconds / 60:,.0f} min"
        if lock.age_seconds > _LOCK_SECONDS:
            told = f"the build of {lock.operation} is locked since {age}: every start that needs it waits for ever"
            yield Finding("error", "builds", told, f"rm {lock.path}")
        else:
            yield Finding("note", "builds", f"{lock.operation} is being built since {age}: starts wait for it")
    lacking = [
        *([] if builders.compiler else ["a C++ compiler (apt install g++)"]),
        *([] if builders.ninja else ["ninja (pip install ninja)"]),
        *([] if builders.python_headers else ["Python.h (apt install python3-dev)"]),
    ]
    if facts.driver.devices and not builders.nvcc and "deepspeed" in facts.packages.versions:
        yield Finding(
            "note",
            "builds",
            "no nvcc: DeepSpeed cannot build its CUDA operations (offload can be)",
            "install the CUDA toolkit of torch's version and set CUDA_HOME",
        )
    if lacking:
        told = f"missing: {', '.join(lacking)}: torch.compile and DeepSpeed's offload cannot build their operations"
        yield Finding("note", "builds", told, "install it, if you use either")
    elif not builders.locks:
        yield Finding("ok", "builds", "compiler, ninja and Python.h are there; no build is locked")


def on_reach(facts: Facts) -> Iterator[Finding]:
    """Rendezvous, proxies and the Hub."""
    reach, fine = facts.reach, True
    if not reach.loopback:
        fine = False
        yield Finding(
            "error",
            "network",
            "127.0.0.1 does not answer itself: no two ranks can start",
            "look at the firewall or the sandbox this runs in",
        )
    if not reach.own_name:
        fine = False
        yield Finding(
            "warning",
            "network",
            "this machine's own name has no address: gloo and NCCL may not find it",
            "add it to /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
        )
    if reach.proxies and not reach.no_proxy:
        fine = False
        yield Finding(
            "warning",
            "network",
            f"{', '.join(reach.proxies)} without no_proxy: local addresses go there",
            "no_proxy=localhost,127.0.0.1 and the names of your nodes",
        )
    if not reach.port_free:
        fine = False
        yield Finding(
            "note",
            "network",
            "port 29500, the launchers' default, is taken: another run, or what is left",
            "--main_process_port 29501",
        )
    if fine:
        yield Finding("ok", "network", "ranks of this machine can meet (127.0.0.1, port 29500 is free)")
    if reach.offline:
        yield Finding("note", "hub", "offline (HF_HUB_OFFLINE): only what is on disk is found")
    elif not reach.token:
        yield Finding(
            "note", "hub", "no token: gated models are refused and downloads are slowed", "hf auth login, or HF_TOKEN"
        )
    else:
        yield Finding("ok", "hub", "a token is there")
