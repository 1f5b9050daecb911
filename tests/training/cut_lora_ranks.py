"""Run by `test_cut_lora.py` on two ranks: the gradients of LoRA on a model whose matrices are cut over them, beside
those of the whole model."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from two_ranks import leave_group


def loaded(directory, config=None):
    """The model with LoRA of the same random values, cut or whole."""
    from peft import LoraConfig, get_peft_model
    from torch.distributed.tensor import DTensor, distribute_tensor

    from hf_recipes.models.base import load_base
    from hf_recipes.models.source import find_model

    model = load_base(find_model(directory), dtype="fp32", distributed_config=config)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "gate_proj"]))
    generator = torch.Generator().manual_seed(1)
    for parameter in (each for each in model.parameters() if each.requires_grad):
        values = torch.randn(parameter.shape, generator=generator) * 0.05
        if isinstance(parameter, DTensor):
            values = distribute_tensor(values, parameter.device_mesh, parameter.placements)
        with torch.no_grad():
            parameter.copy_(values)
    return model


def gradients(model):
    """Loss and gradients, whole, of two rows."""
    ids = torch.randint(3, 300, (2, 20), generator=torch.Generator().manual_seed(2))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    trained = {name: each.grad for name, each in model.named_parameters() if each.requires_grad}
    return loss.item(), {name: whole_tensor(each) for name, each in trained.items()}


def whole_tensor(tensor):
    """A cut tensor gathered, another one as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def main(directory, model_directory):
    from types import SimpleNamespace

    from hf_recipes.core.data_parallel import set_degrees
    from hf_recipes.training.parallelism import check_cut, tensor_parallel_config

    torch.set_num_threads(1)
    whole_loss, whole = gradients(loaded(model_directory))
    dist.init_process_group("gloo")
    arguments = SimpleNamespace(world_size=2)
    set_degrees(arguments, tensor=2)
    model = loaded(model_directory, tensor_parallel_config(arguments))
    check_cut(model)
    cut_loss, cut = gradients(model)
    leave_group(
        directory,
        {
            "losses": [whole_loss, cut_loss],
            "differences": {name: (whole[name] - cut[name]).abs().max().item() for name in whole},
            "largest": max(each.abs().max().item() for each in whole.values()),
            "cut": sum(hasattr(each, "placements") for each in model.parameters()),
        },
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
