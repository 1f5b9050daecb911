"""Machines made of namespaces: each host has its own network, name and process ids, as another computer would.

    with hosts(2) as (first, second):
        process = first.start([sys.executable, "-m", "..."])
        second.unplug()

A host lives as long as one process that holds its namespaces, and that process dies with this one: nothing is left
behind, however a test ends. Needs root and a Linux kernel with veth; `why_no_hosts` says what is missing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_TOOLS = ("ip", "tc", "unshare", "nsenter")
INTERFACE = "eth0"


@dataclass(frozen=True)
class Host:
    """One machine: its name, its address, the process that keeps it alive."""

    name: str
    address: str
    init: int
    switch: int
    port: str

    def start(self, command: list[str], **more) -> subprocess.Popen:
        """Start a command on it; as `subprocess.Popen`."""
        inside = ["nsenter", "--target", str(self.init), "--net", "--uts", "--pid", "--mount", f"--wdns={Path.cwd()}"]
        return subprocess.Popen([*inside, *map(str, command)], **more)

    def processes(self) -> list[psutil.Process]:
        """All that runs on it, init left out."""
        return psutil.Process(self.init).children(recursive=True) + [
            process
            for process in psutil.process_iter()
            if process.pid != self.init and _pid_space(process.pid) == _pid_space(self.init)
        ]

    def slow_down(self, mbit: float) -> None:
        """Send no more than so many Mbit/s."""
        burst = max(32_000, int(mbit * 1e6 / 8 / 250))  # what a tick of the kernel's clock may pass
        self._ip("tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", "rate", f"{mbit}mbit", "burst", f"{burst}",
                 "latency", "200ms")  # fmt: skip

    def unplug(self) -> None:
        """Pull its cable: nothing comes or goes any more, and nobody is told."""
        _run("nsenter", "--target", str(self.switch), "--net", "ip", "link", "set", self.port, "down")

    def power_off(self) -> None:
        """Pull its cable, then end all that runs on it, without a word to anybody."""
        self.unplug()
        os.kill(self.init, signal.SIGKILL)

    def _ip(self, *command: str) -> None:
        _run("nsenter", "--target", str(self.init), "--net", *command)


def why_no_hosts() -> str | None:
    """Why namespaces cannot be used here; None where they can."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"hosts of namespaces need {', '.join(missing)} (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "hosts of namespaces need root"
    try:
        with hosts(1):
            return None
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        return f"hosts of namespaces cannot be made here ({error})"


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many machines, node0 upwards, on one switch; each knows the names of all."""
    with ExitStack() as stack:
        switch = stack.enter_context(_held("--net"))
        _run("nsenter", "--target", str(switch), "--net", "ip", "link", "add", "bridge", "type", "bridge")
        _run("nsenter", "--target", str(switch), "--net", "ip", "link", "set", "bridge", "up")
        made = [_plugged_in(stack, switch, number) for number in range(count)]
        for host in made:
            _name(host, made)
        yield made


def _plugged_in(stack: ExitStack, switch: int, number: int) -> Host:
    init = stack.enter_context(_held("--net", "--uts", "--pid", "--mount", "--mount-proc", "--propagation", "private"))
    port = f"port{number}"
    _run("ip", "link", "add", INTERFACE, "netns", str(init), "type", "veth", "peer", "name", port, "netns", str(switch))
    _run("nsenter", "--target", str(switch), "--net", "ip", "link", "set", port, "master", "bridge", "up")
    host = Host(f"node{number}", f"10.77.0.{number + 1}", init, switch, port)
    host._ip("ip", "address", "add", f"{host.address}/24", "dev", INTERFACE)
    host._ip("ip", "link", "set", INTERFACE, "up")
    host._ip("ip", "link", "set", "lo", "up")
    return host


def _name(host: Host, all_hosts: list[Host]) -> None:
    names = "".join(f"{each.address} {each.name}\\n" for each in all_hosts)
    script = (
        f"hostname {host.name} && printf '127.0.0.1 localhost\\n{names}' > /tmp/.hosts-$$ && "
        "mount --bind /tmp/.hosts-$$ /etc/hosts && rm -f /tmp/.hosts-$$"
    )
    _run("nsenter", "--target", str(host.init), "--uts", "--mount", "sh", "-c", script)


@contextmanager
def _held(*spaces: str) -> Iterator[int]:
    """New namespaces for as long as the context lasts; the process id to enter them by."""
    command = ["unshare", *spaces, "--fork", "--kill-child", "sleep", "infinity"]
    holder = subprocess.Popen(command, preexec_fn=_die_with_parent, stderr=subprocess.PIPE, text=True)
    try:
        init = _child(holder)
        try:
            yield init
        finally:
            with suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)  # and with it all that runs in the namespaces
            holder.wait(timeout=30)
    finally:
        holder.kill()
        holder.communicate()


def _child(holder: subprocess.Popen) -> int:
    """The process that unshare starts, once it is what it is to become: only then are all namespaces there."""
    for _ in range(500):
        if holder.poll() is not None:
            raise RuntimeError((holder.communicate()[1] or "unshare failed").strip())
        children = psutil.Process(holder.pid).children()
        if children and children[0].name() == "sleep":
            return children[0].pid
        time.sleep(0.01)
    raise RuntimeError("unshare does not start")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _pid_space(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
