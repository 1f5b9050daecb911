"""Run by `test_traffic_measured.py` on two ranks: what `Recorder` writes down beside torch's own flight recorder."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

os.environ["TORCH_FR_BUFFER_SIZE"] = "1000"

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave_group

from benchmarks.communication_rows.recorder import Recorder


def flown():
    """How many collectives of each kind the flight recorder saw; gloo makes a reduce-scatter of an all-reduce."""
    told = json.loads(_dump_fr_trace_json(includeCollectives=True, onlyActive=False))
    return Counter(entry["profiling_name"].partition(":")[2] for entry in told["entries"])


def stack():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))


def sharded():
    model, mesh = stack(), init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen = {}
    models = {"ddp": DistributedDataParallel(stack(), bucket_cap_mb=0.02), "fsdp": sharded()}
    for name, model in models.items():
        for _ in range(2):  # DDP makes its buckets anew after the first
            model(torch.ones(2, 64)).sum().backward()
        recorder, before = Recorder(), flown()
        recorder.steps.append([])
        with recorder:
            model(torch.ones(2, 64)).sum().backward()
        seen[name] = {"recorded": recorder.steps[0], "flown": flown() - before}
    leave_group(directory, seen)


if __name__ == "__main__":
    main(sys.argv[1])
