"""A long, thin wire between two hosts of namespaces: packets arrive after a delay, at a rate.

`tc netem` does as much where the kernel has it; this needs only TUN devices. Packets go through this process, whose own
pace allows a few Gbit/s.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from hosts import Host

WIRE = "wire0"
_MTU = 60_000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000


def wire_address(host: Host) -> str:
    """The host's address on the wire."""
    return host.address.replace("10.77.", "10.78.")


@contextmanager
def slow_wire(first: Host, second: Host, delay_seconds: float, bytes_per_second: float) -> Iterator[None]:
    """Join two hosts by an interface `WIRE` besides their others; each direction has the rate and the delay."""
    ends = [_open_end(host) for host in (first, second)]
    directions = [
        _Direction(source, target, delay_seconds, bytes_per_second) for source, target in (ends, reversed(ends))
    ]
    try:
        yield
    finally:
        for direction in directions:
            direction.closed = True
        for host in (first, second):
            _inside(host, "ip", "link", "set", WIRE, "down")
        for direction in directions:
            direction.join()
        for end in ends:
            os.close(end)


class _Direction:
    """Reads packets at one end and writes them at the other when they are due."""

    def __init__(self, source: int, target: int, delay_seconds: float, bytes_per_second: float) -> None:
        self._source, self._target, self.closed = source, target, False
        self._delay, self._rate = delay_seconds, bytes_per_second
        self._due: deque[tuple[float, bytes]] = deque()
        self._arrived = threading.Semaphore(0)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._write)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        self._arrived.release()
        self._threads[1].join(5)

    def _read(self) -> None:
        free_at = 0.0
        while not self.closed:
            try:
                packet = os.read(self._source, _MTU + 100)
            except OSError:
                return
            free_at = max(free_at, time.monotonic()) + len(packet) / self._rate
            self._due.append((free_at + self._delay, packet))
            self._arrived.release()

    def _write(self) -> None:
        while True:
            self._arrived.acquire()
            if self.closed or not self._due:
                return
            due, packet = self._due.popleft()
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            try:
                os.write(self._target, packet)
            except OSError:
                return


def _open_end(host: Host) -> int:
    """A TUN device in the host's network; the end of it that is held here."""
    found: list[int] = []

    def inside() -> None:  # a thread has a network of its own
        with open(f"/proc/{host.init}/ns/net") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
                return
        end = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", WIRE.encode(), _IFF_TUN | _IFF_NO_PI))
        found.append(end)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    if not found:
        raise RuntimeError(f"no TUN device can be made on {host.name}")
    _inside(host, "ip", "address", "add", f"{wire_address(host)}/24", "dev", WIRE)
    _inside(host, "ip", "link", "set", WIRE, "mtu", str(_MTU), "up")
    return found[0]


def _inside(host: Host, *command: str) -> None:
    subprocess.run(["nsenter", "--target", str(host.init), "--net", *command], check=True, capture_output=True)
