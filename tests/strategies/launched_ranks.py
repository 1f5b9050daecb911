"""Runs as the printed line starts them, without seconds of imports for each: one process imports the stack once, reads
a line as accelerate's own launcher does, and forks the ranks where torchrun would start them.

Import as `from launched_ranks import LaunchedRanks`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = [TESTS.parent, TESTS, *(TESTS / name for name in ("strategies", "plan", "training"))]
PATIENCE_SECONDS = 900.0
_MOURNING_SECONDS = 30.0  # what torchrun gives the ranks that are left when one ends badly


class LaunchedRanks:
    """Start runs, one after the other; close it in the end.

    Args:
        folder: for DeepSpeed's compiled operations and the prepared data.
        preload: modules to import once, besides those that every run needs.
    """

    def __init__(self, folder, preload=("deepspeed", "bitsandbytes")):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_RECIPES_DATA_CACHE": str(Path(folder) / "data"),
            "PYTHONPATH": os.pathsep.join(map(str, FOLDERS)),
        }
        if "TORCH_EXTENSIONS_DIR" not in environment:
            environment["TORCH_EXTENSIONS_DIR"] = own_extensions(Path(folder) / "extensions")
        self._folder = folder
        command = [sys.executable, __file__, *preload]
        self._server = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, lines, log, *, hooks=(), devices=True):
        """The exit codes of the nodes' launchers, a negative one for a signal.

        Args:
            lines: the words after ``accelerate launch``, of each node; for one that is empty a single rank is started
                without a launcher, on the words in `alone`.
            log: file for what the ranks print.
            hooks: ``[module:function, *arguments]`` to call on each rank before it begins.
            devices: whether the ranks pass for devices, to be sharded over.
        """
        return self._ordered({"lines": lines, "log": str(log), "hooks": list(hooks), "devices": devices})

    def call(self, function, *arguments):
        """What ``module:function`` gives in a process of its own that has everything imported; plain data both ways."""
        answer = Path(self._folder) / "answer.json"
        answer.unlink(missing_ok=True)
        order = {"call": function, "arguments": list(arguments), "answer": str(answer)}
        (code,) = self._ordered({**order, "log": str(Path(self._folder) / "calls.log")})
        assert code == 0, (Path(self._folder) / "calls.log").read_text()[-3000:]
        return json.loads(answer.read_text())

    def _ordered(self, order):
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the server is gone"
        return json.loads(answer)

    def close(self):
        self._server.stdin.close()
        self._server.wait(60)


def own_extensions(folder):
    """A folder for DeepSpeed's compiled operations, with those that this machine has already: two processes that build
    one at once wait for each other's lock, and for that of one that was killed they wait for ever."""
    known = Path.home() / ".cache" / "torch_extensions"
    for operation in known.glob("py*_cpu/*/*.so"):
        shutil.copytree(
            operation.parent,
            folder / operation.parent.name,
            ignore=shutil.ignore_patterns("lock"),
            dirs_exist_ok=True,
        )
    return str(folder)


def serve():
    """Read orders, one a line, until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed by the way is no answer
    for name in ("accelerate.commands.launch", "torch.distributed.run", "hf_recipes.training.run", "strategy_ranks"):
        importlib.import_module(name)
    for name in sys.argv[1:]:
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if "call" in order:
            launchers = [fork(order["log"], answer_call, order)]
        else:
            launchers = [fork(order["log"], launch, order, words) for words in order["lines"]]
        print(json.dumps(waited(launchers)), file=answers, flush=True)


def waited(children):
    """The codes of processes that lead groups of their own; what outlasts our patience is killed."""
    codes = {}
    end = time.monotonic() + PATIENCE_SECONDS
    while len(codes) < len(children):
        for child in set(children) - set(codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.05)
    return [codes[child] for child in children]


def fork(log, function, *arguments, leader=True):
    """Run `function` in a forked process, which exits with what it returns."""
    if child := os.fork():
        return child
    code = 70
    try:
        if leader:
            os.setpgid(0, 0)
            target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(target, 1)
            os.dup2(target, 2)
        code = function(*arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def answer_call(order):
    import torch

    torch.set_num_threads(1)
    module, _, name = order["call"].partition(":")
    value = getattr(importlib.import_module(module), name)(*order["arguments"])
    Path(order["answer"]).write_text(json.dumps(value))
    return 0


def launch(order, words):
    """What `accelerate launch` does with the words, up to where it hands over to torchrun."""
    if words[0] == "alone":
        return rank({"ACCELERATE_USE_CPU": "true"}, words[1:], order)
    import torch.distributed.run as torchrun
    from accelerate.commands.launch import launch_command, launch_command_parser

    codes = []
    torchrun.run = lambda settings: codes.extend(ranks(settings, order))
    launch_command(launch_command_parser().parse_args(words))
    return next((code for code in codes if code), 0)


def ranks(settings, order):
    """The ranks of one node, as torchrun starts them; the first that ends badly ends the others."""
    local, nodes = int(settings.nproc_per_node), int(str(settings.nnodes).split(":")[0])
    node = int(settings.node_rank or 0)
    port = settings.master_port if nodes == 1 else settings.rdzv_endpoint.rpartition(":")[2]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none"}
    common |= {"WORLD_SIZE": str(local * nodes), "LOCAL_WORLD_SIZE": str(local)}
    children = []
    for place in range(local):
        own = {"RANK": str(node * local + place), "LOCAL_RANK": str(place)}
        arguments = [{**common, **own}, settings.training_script_args, order]
        children.append(fork(order["log"], rank, *arguments, leader=False))
    codes = {}
    while len(codes) < local:
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child] and len(codes) < local:
            mourn(set(children) - set(codes), codes)
    return [codes[child] for child in children]


def mourn(left, codes):
    for child in left:
        os.kill(child, signal.SIGTERM)
    end = time.monotonic() + _MOURNING_SECONDS
    while left - set(codes):
        for child in left - set(codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.05)


def rank(environment, arguments, order):
    import strategy_ranks
    from resumed_runs import plain_and_slim

    os.environ.update(environment)
    os.environ["AS_ON_DEVICES"] = str(order["devices"] and "RANK" in environment).lower()
    sys.argv = ["hf_recipes.sft", *arguments]
    for module, *values in order["hooks"]:
        name, _, function = module.partition(":")
        getattr(importlib.import_module(name), function)(*values)
    with plain_and_slim():
        return strategy_ranks.main()


if __name__ == "__main__":
    serve()
