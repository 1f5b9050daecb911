"""What FSDP2 and ZeRO hand to `save_pretrained` are copies that share no memory: tied weights must still go once."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from tiny_models import make_tiny_llama

from hf_recipes.checkpoints.tied import leave_tied_out_of_saves


def saved_names(model, directory):
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.save_pretrained(directory, state_dict=copies)
    return set(load_file(directory / "model.safetensors"))


def test_a_tied_head_is_written_once(tmp_path):
    model = make_tiny_llama()
    assert "lm_head.weight" in saved_names(model, tmp_path / "before")  # else nothing has to be done
    leave_tied_out_of_saves(model)
    leave_tied_out_of_saves(model)  # of a second training
    names = saved_names(model, tmp_path / "after")
    assert names == set(make_tiny_llama(tied=False).state_dict()) - {"lm_head.weight"}
    assert model._keys_to_ignore_on_save == ["lm_head.weight"]
    again = type(model).from_pretrained(tmp_path / "after")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_heads_that_are_not_tied_are_written(tmp_path):
    apart = make_tiny_llama(tied=False)
    untied = make_tiny_llama()
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach() + 1)  # though its config says otherwise
    for name, model in (("apart", apart), ("untied", untied)):
        leave_tied_out_of_saves(model)
        assert "lm_head.weight" in saved_names(model, tmp_path / name)


def test_what_is_not_of_transformers_is_left_alone():
    leave_tied_out_of_saves(torch.nn.Linear(2, 2))
