"""Two machines, or the reason why there are none."""

from __future__ import annotations

import time

import pytest
from hosts import hosts, why_no_hosts
from machine_runs import write_data


@pytest.fixture(scope="session")
def can_make_hosts():
    """Skips where namespaces are not allowed."""
    if reason := why_no_hosts():
        pytest.skip(reason)


@pytest.fixture
def two(can_make_hosts):
    with hosts(2) as made:
        yield made


@pytest.fixture
def workplace(tmp_path):
    """A folder that both machines see, as on a network file system; with data."""
    write_data(tmp_path)
    return tmp_path


@pytest.fixture
def until():
    """Waits until something is true, or any of the processes given has ended; fails after ten minutes."""

    def wait(true, *processes):
        deadline = time.monotonic() + 600
        while not true():
            if any(process.poll() is not None for process in processes):
                return False
            assert time.monotonic() < deadline, "it never became true"
            time.sleep(0.1)
        return True

    return wait
