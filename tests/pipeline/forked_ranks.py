"""A process that has imported everything once, and forks the ranks of one run after the other: real processes over
gloo without seconds of imports for each. Import as `from forked_ranks import ForkedRanks`."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


class ForkedRanks:
    """`run(ranks, "module:function", directory, *arguments)` calls it in so many ranks; gives what each returned."""

    def __init__(self):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "true",
            "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS, Path(__file__).parent))),
        }
        command = [sys.executable, __file__]
        self._server = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, ranks, function, directory, *arguments):
        order = {"ranks": ranks, "function": function, "directory": str(directory), "arguments": arguments}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        assert line, f"the server of ranks ended with code {self._server.wait(60)}"
        answer = json.loads(line)
        failures = [each for each in answer if "failure" in each]
        assert not failures, failures[0]["failure"][-4000:]
        return [each["value"] for each in answer]

    def close(self):
        self._server.stdin.close()
        self._server.wait(60)


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def serve():
    """Read orders, one a line, until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ranks print is no answer
    import matplotlib.figure  # noqa: F401  # for the curves at the end of a run
    from transformers import LlamaForCausalLM  # noqa: F401

    import hf_recipes.training.pipelined  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        directory, port = Path(order["directory"]), free_port()
        directory.mkdir(parents=True, exist_ok=True)
        children = [fork_rank(order, rank, port) for rank in range(order["ranks"])]
        for child in children:
            os.waitpid(child, 0)
        print(json.dumps([answer_of(directory, rank) for rank in range(order["ranks"])]), file=answers, flush=True)


def answer_of(directory, rank):
    file = directory / f"answer{rank}.json"
    if not file.is_file():
        return {"failure": f"rank {rank} ended without an answer"}
    answer = json.loads(file.read_text())
    file.unlink()
    return answer


def fork_rank(order, rank, port):
    if child := os.fork():
        return child
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ.update(WORLD_SIZE=str(order["ranks"]), LOCAL_WORLD_SIZE=str(order["ranks"]))
        answer = {"value": call(order)}
    except BaseException:
        answer = {"failure": traceback.format_exc()}
    (Path(order["directory"]) / f"answer{rank}.json").write_text(json.dumps(answer))
    sys.stderr.flush()
    os._exit(0)


def call(order):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    module, _, name = order["function"].partition(":")
    try:
        return getattr(importlib.import_module(module), name)(Path(order["directory"]), *order["arguments"])
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    serve()
