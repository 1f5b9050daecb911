from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from hf_recipes.core.errors import UserError
from hf_recipes.training import loss_kernels
from hf_recipes.training.loss import chunked_cross_entropy
from hf_recipes.training.loss_kernels import choose_kernel, compare_kernels


@pytest.fixture
def head():
    torch.manual_seed(0)
    return nn.Linear(16, 64, bias=False)


def full_logits(hidden, weight, bias, labels):
    """Another right implementation."""
    return nn.functional.cross_entropy(nn.functional.linear(hidden, weight, bias).float(), labels, reduction="sum")


def test_on_a_cpu_it_is_plain_pytorch(head):
    assert choose_kernel("auto", head) is chunked_cross_entropy
    assert choose_kernel("torch", head) is chunked_cross_entropy
    assert choose_kernel("auto", nn.Identity()) is chunked_cross_entropy


@pytest.mark.parametrize("name", ["liger", "cce"])
def test_a_kernel_asked_for_by_name_without_a_gpu_is_one_sentence(name, head):
    with pytest.raises(UserError, match=f"loss_kernel: {name} runs on a GPU"):
        choose_kernel(name, head)


def test_kernels_are_tried_before_they_are_trusted(head):
    def broken(*_):
        raise RuntimeError("no such device\nand more")

    found = compare_kernels(
        {
            "right": full_logits,
            "mean": lambda *values: full_logits(*values) / 512,
            "without gradient": lambda hidden, *rest: full_logits(hidden, *rest).detach() + 0 * hidden.sum(),
            "broken": broken,
        },
        head,
        torch.float32,
    )
    assert isinstance(found["torch"], float) and isinstance(found["right"], float)
    assert "its loss is" in found["mean"]
    assert "its gradient differs" in found["without gradient"]
    assert found["broken"] == "RuntimeError: no such device"


def test_of_those_that_agree_the_fastest_is_taken_and_told(head, monkeypatch, caplog):
    def wrong(*values):
        return 2 * full_logits(*values)

    found = {"torch": 2.0, "cce": 1.0, "liger": "its loss is 3"}
    monkeypatch.setattr(
        loss_kernels, "_KERNELS", {"cce": ("torch", "", lambda: full_logits), "liger": ("torch", "", lambda: wrong)}
    )
    monkeypatch.setattr(loss_kernels, "compare_kernels", lambda *_: found)
    with caplog.at_level("INFO", logger="hf_recipes"):
        assert loss_kernels._fastest("auto", head, torch.float32) == "cce"
    assert "Loss kernel liger is left out" in caplog.text
    with pytest.raises(UserError, match="loss_kernel: liger cannot be used here"):
        loss_kernels._fastest("liger", head, torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["liger", "cce"])
def test_an_installed_kernel_agrees_on_a_gpu(name):
    module, _, load = loss_kernels._KERNELS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    head = nn.Linear(256, 4096, bias=False).to("cuda", torch.bfloat16)
    assert isinstance(compare_kernels({name: load()}, head, torch.bfloat16)[name], float)
