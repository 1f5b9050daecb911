"""The machines made of namespaces: apart, joined by a wire that can be slow or pulled, and gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hosts import hosts

SERVE = """
import socket
place = socket.create_server(("", 5000))
print("ready", flush=True)
while True:
    there, _ = place.accept()
    while there.recv(1 << 16):
        pass
    there.sendall(b"got it")
"""
SEND = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[3])) as there:
    there.sendall(bytes(int(sys.argv[2])))
    there.shutdown(socket.SHUT_WR)
    there.recv(10)
print(time.monotonic() - began)
"""


def run(host, *command):
    done = host.start([*command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = done.communicate(timeout=120)
    return out.strip(), done.returncode, err


def send(host, to, count, timeout=60):
    return run(host, sys.executable, "-c", SEND, to, str(count), str(timeout))


def test_each_has_its_name_its_processes_and_a_wire_to_the_other(two):
    first, second = two
    assert [run(host, "hostname")[0] for host in two] == ["node0", "node1"]
    server = second.start([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    assert len(second.processes()) == 1
    assert first.processes() == []
    quick, code, _ = send(first, "node1", 1_000_000)
    assert code == 0
    first.slow_down(8)  # a megabyte takes a second
    slow, code, _ = send(first, "node1", 1_000_000)
    assert code == 0
    assert float(slow) > 0.7 > 0.0 < float(quick)
    second.unplug()
    assert send(first, "node1", 10, timeout=2)[1] != 0
    assert server.poll() is None  # nobody has told it
    second.power_off()
    assert server.wait(timeout=60) != 0


def test_nothing_is_left_when_the_process_that_made_them_is_killed(can_make_hosts, tmp_path):
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\nfrom hosts import hosts\n"
        "with hosts(2) as two:\n"
        "    two[0].start(['sleep', '1000'])\n"
        "    time.sleep(0.3)\n"
        "    print(*[host.init for host in two], flush=True); time.sleep(1000)\n"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    inits = [int(word) for word in maker.stdout.readline().split()]
    assert all(psutil.pid_exists(pid) for pid in inits)
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait()
    deadline = time.monotonic() + 60
    while any(psutil.pid_exists(pid) for pid in inits):
        assert time.monotonic() < deadline, "a host outlives its maker"
        time.sleep(0.05)


def test_an_error_inside_takes_them_down(can_make_hosts):
    with pytest.raises(ZeroDivisionError), hosts(1) as (host,):
        1 / 0  # noqa: B018
    assert not psutil.pid_exists(host.init)
