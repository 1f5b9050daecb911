"""The network between machines made of namespaces, measured: a slow one is named, an absent one too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hosts import hosts
from machine_runs import on_cpu

MODULE = [sys.executable, "-m", "hf_recipes.doctor.network", "--largest", "256KiB"]


def start(host, number, machines, *options, command=MODULE):
    place = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "RANK": str(number), "WORLD_SIZE": str(machines)}
    environment = on_cpu({**place, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    return host.start([*command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.trials
def test_the_machine_with_the_slow_link_is_named(can_make_hosts):
    """7 million parameters in bf16 pass 28 MB a step: 4.5 s at 50 Mbit/s, beside 10 ms of computing."""
    given = ["--json", "--strategy", "ddp", "--parameters", "7e6", "--step_seconds", "0.01"]
    with hosts(3) as three:
        three[2].slow_down(50)
        processes = [start(host, number, 3, *given) for number, host in enumerate(three)]
        out, err = processes[0].communicate(timeout=600)
        assert [process.wait(timeout=600) for process in processes] == [1, 0, 0], err[-2000:]
    told = json.loads(out)
    assert told["hosts"] == ["node0", "node1", "node2"]
    assert [text.split(" is slow")[0] for text in told["slow"]] == ["Every link from or to node2"]
    slow = [link for link in told["links"] if link["source_host"] == "node2"]
    assert all(link["bytes_per_second"] < 50e6 / 8 * 1.2 for link in slow)  # the bucket of tbf passes a little at once
    assert not told["verdict"]["ok"]
    assert told["verdict"]["communication_seconds"] > 28e6 / 2 / (50e6 / 8)


@pytest.mark.slow
@pytest.mark.trials
def test_a_machine_that_does_not_come_is_named_within_the_patience(two):
    command = [sys.executable, "-m", "hf_recipes.cli.main", "doctor", "--network", "--patience", "3"]
    command += ["--num_processes", "2", "--num_machines", "2", "--main_process_ip", "node0", "--machine_rank"]
    first = start(two[0], 0, 1, "0", command=command)
    _, err = first.communicate(timeout=600)
    assert first.returncode == 2
    assert "Machine 1 (ranks 2 and 3) did not come within 3 s, while node0 waited at node0:29500" in err
    second = start(two[1], 0, 1, "1", command=command)
    _, err = second.communicate(timeout=600)
    assert second.returncode == 2
    assert "Nobody answers at node0:29500 for 3 s" in err


@pytest.mark.slow
@pytest.mark.trials
def test_two_machines_measure_by_the_verb(two):
    command = [sys.executable, "-m", "hf_recipes.cli.main", "doctor", "--network", "--largest", "1MiB"]
    command += ["--num_processes", "2", "--num_machines", "2", "--main_process_ip", "node0", "--machine_rank"]
    processes = [start(host, 0, 1, str(number), command=command) for number, host in enumerate(two)]
    out, err = processes[0].communicate(timeout=600)
    assert [process.wait(timeout=600) for process in processes] == [0, 0], err[-2000:]
    assert out.startswith("gloo, 4 ranks on 2 machines (node0, node1)")
    assert processes[1].stdout.read() == ""
