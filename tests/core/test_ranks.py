from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from hf_recipes.core import ranks

RANK_PROGRAM = """
import json, os, sys, time
import torch.distributed as dist
from hf_recipes.core import ranks
before = ranks.rank()
dist.init_process_group("gloo")
me = ranks.rank()
if me == 1:
    time.sleep(0.5)
    open(sys.argv[1], "w").close()
ranks.barrier()
print(json.dumps({
    "before": before, "rank": me, "world": ranks.world_size(), "main": ranks.is_main(),
    "waited": os.path.exists(sys.argv[1]),
    "broadcast": ranks.broadcast({"from": me}), "gather": ranks.gather(me * 10),
}))
dist.destroy_process_group()
"""


def test_alone_everything_is_answered_without_torch():
    code = (
        "import sys; from hf_recipes.core import ranks;"
        "ranks.barrier();"
        "assert (ranks.rank(), ranks.world_size(), ranks.is_main()) == (0, 1, True);"
        "assert ranks.broadcast('x') == 'x' and ranks.gather(3) == [3];"
        "assert 'torch' not in sys.modules"
    )
    environment = {key: value for key, value in os.environ.items() if key != "RANK"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_before_the_group_exists_the_launcher_tells_the_rank(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert ranks.rank() == 3 and not ranks.is_main()


def run_ranks(command):
    """What two real processes of one group print."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    return [process.communicate(timeout=120)[0] for process in processes]


@pytest.mark.slow
def test_two_real_processes_agree(tmp_path):
    command = [sys.executable, "-c", RANK_PROGRAM, str(tmp_path / "flag")]
    answers = [json.loads(text.splitlines()[-1]) for text in run_ranks(command)]
    for rank, answer in enumerate(answers):
        assert answer == {
            "before": rank,
            "rank": rank,
            "world": 2,
            "main": rank == 0,
            "waited": True,
            "broadcast": {"from": 0},
            "gather": [0, 10],
        }


LONG_WORK_PROGRAM = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
from hf_recipes.core import ranks
from hf_recipes.core.errors import UserError
dist.init_process_group("gloo", timeout=timedelta(seconds=2))
def work():
    if not os.path.exists(sys.argv[1]):
        time.sleep(6)  # three times what a collective of the group waits
        if sys.argv[2] == "fail":
            raise UserError("the data is bad")
        open(sys.argv[1], "w").close()
        return "made"
    return "found"
try:
    print(ranks.first_on_each_machine(work))
except UserError as error:
    print(f"refused: {error}")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "answers"),
    [
        pytest.param("well", ["made", "found"], marks=pytest.mark.trials),
        ("fail", ["refused: the data is bad"] * 2),
    ],
)
def test_d16_ranks_wait_for_long_work_beyond_the_time_out_of_collectives(tmp_path, end, answers):
    command = [sys.executable, "-c", LONG_WORK_PROGRAM, str(tmp_path / "result"), end]
    assert [text.splitlines()[-1] for text in run_ranks(command)] == answers
