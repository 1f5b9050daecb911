from __future__ import annotations

import torch
from tiny_models import make_tiny_llama

from hf_recipes.models.counts import count_parameters


def test_parameters_that_zero3_shows_empty_count_as_gathered():
    """DeepSpeed leaves an empty tensor in place and the number of elements in `ds_numel`."""
    model = make_tiny_llama()
    before = count_parameters(model)
    for parameter in model.parameters():
        parameter.ds_numel = parameter.numel()
        parameter.data = torch.empty(0)
    assert count_parameters(model) == before


def test_frozen_ones_are_not_trained():
    model = make_tiny_llama(tied=False)
    _, total = count_parameters(model)
    model.lm_head.weight.requires_grad_(False)
    assert count_parameters(model) == (total - model.lm_head.weight.numel(), total)
