"""Run by `test_launched_configs.py` in place of `-m hf_recipes.sft`: what the ranks of a launcher run, on CPU ranks.

Accelerate shards over devices only, so these ranks pass for devices; nothing else is changed.
"""

from __future__ import annotations

import os
import sys


def as_on_devices() -> None:
    """Let accelerate use FSDP and DeepSpeed over gloo ranks on the CPU."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    os.environ.pop("ACCELERATE_USE_CPU", None)
    from accelerate.state import DistributedType, PartialState
    from torch.distributed.fsdp import CPUOffloadPolicy
    from transformers import training_args

    training_args.is_torch_bf16_gpu_available = lambda: True

    CPUOffloadPolicy.__init__.__defaults__ = (False,)  # memory is pinned for a device
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)


def main() -> int:
    import torch

    torch.set_num_threads(1)
    told = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "AS_ON_DEVICES")  # the last by tests, for tp
    sharded = any(os.environ.get(name) == "true" for name in told)
    if sharded:
        as_on_devices()
    else:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    from hf_recipes.models.precision import Hardware
    from hf_recipes.training import setup

    setup.detect_hardware = lambda: Hardware("gloo" if sharded else "cpu", True)
    from hf_recipes.sft import main as sft

    return sft()


if __name__ == "__main__":
    sys.exit(main())
