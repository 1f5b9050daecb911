"""What is looked at, as plain data: gatherers fill it, rules read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Unmet:
    """A requirement of an installed package that what is installed does not meet; `installed` is None where absent."""

    package: str
    requirement: str
    installed: str | None


@dataclass(frozen=True)
class Packages:
    """Installed versions by canonical name, what is required and not there, and names installed more than once."""

    versions: Mapping[str, str] = field(default_factory=dict)
    unmet: tuple[Unmet, ...] = ()
    doubled: tuple[str, ...] = ()


@dataclass(frozen=True)
class Disk:
    """A place that a run writes to: what for, where, bytes free and in all; whether it can be written."""

    purpose: str
    path: str
    free_bytes: int
    total_bytes: int
    writable: bool = True


@dataclass(frozen=True)
class Machine:
    """The machine as its operating system and its container tell it.

    Attributes:
        cores: that this process may run on.
        cpu_quota: cores that the container may use; None without a limit.
        ram_bytes, ram_free_bytes: the machine's.
        container_ram_bytes: the container's limit; None without one.
        shm_bytes, shm_free_bytes: of /dev/shm; None where there is none.
        limits: soft limits (``nofile``, ``memlock``, ``nproc``); None for unlimited.
        encoding: of files by default.
        clock: Unix seconds.
    """

    system: str = "Linux"
    python: tuple[int, int, int] = (3, 11, 0)
    cores: int = 1
    cpu_quota: float | None = None
    ram_bytes: int = 0
    ram_free_bytes: int = 0
    container_ram_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()
    encoding: str = "utf-8"
    clock: float = 0.0
    newest_file: float = 0.0


@dataclass(frozen=True)
class Reach:
    """The network as a launcher and the Hub's client meet it.

    Attributes:
        loopback: two ends of this machine could talk.
        own_name: this machine's own name has an address.
        proxies: names of proxy variables that are set, without their values.
        no_proxy: whether loopback is left out of them.
        offline: HF_HUB_OFFLINE or its like is set.
        token: a Hub token is there (never which).
        port_free: the usual rendezvous port 29500 is free.
    """

    loopback: bool = True
    own_name: bool = True
    proxies: tuple[str, ...] = ()
    no_proxy: bool = True
    offline: bool = False
    token: bool = False
    port_free: bool = True


@dataclass(frozen=True)
class Lock:
    """A lock file of torch's extensions folder: the operation it is for, and its age."""

    operation: str
    path: str
    age_seconds: float


@dataclass(frozen=True)
class Builders:
    """What compiles operations: found programs, Python's headers, and locks that a killed build left."""

    compiler: bool = True
    ninja: bool = True
    nvcc: bool = False
    python_headers: bool = True
    locks: tuple[Lock, ...] = ()


@dataclass(frozen=True)
class Holder:
    """A process that has a GPU open."""

    pid: int
    name: str
    devices: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver as the kernel tells it: devices in /dev, its version, who has them open."""

    devices: int = 0
    version: str | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True)
class Probe:
    """What torch and its friends could do in a process of their own.

    Attributes:
        results: of each stage that came to an end, by its name.
        failed_stage: the stage during which the process ended or its time was up; None when all came through.
        failure: how: a sentence of the error, the signal, or the time limit.
    """

    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failed_stage: str | None = None
    failure: str = ""


@dataclass(frozen=True)
class Facts:
    """All of it; `probe` is None where it was left out. `variables` are the environment's that runs obey."""

    packages: Packages = Packages()
    machine: Machine = Machine()
    reach: Reach = Reach()
    builders: Builders = Builders()
    driver: Driver = Driver()
    probe: Probe | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
