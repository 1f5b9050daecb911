from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.models.precision import Hardware, Precision, choose_precision, detect_hardware

GPU = Hardware("cuda", bf16=True)
OLD_GPU = Hardware("cuda", bf16=False)
CPU = Hardware("cpu", bf16=True)
OLD_CPU = Hardware("cpu", bf16=False)


@pytest.mark.parametrize("method", ["lora", "qlora", "dora"])
@pytest.mark.parametrize("hardware", [GPU, CPU])
def test_adapters_train_on_a_bf16_base(method, hardware):
    assert choose_precision(method, hardware) == Precision("bfloat16", bf16=True, fp16=False)


def test_full_fine_tuning_keeps_fp32_master_weights_under_bf16_autocast():
    assert choose_precision("full", GPU) == Precision("float32", bf16=True, fp16=False)


def test_without_bf16_hardware_fp32_is_used_and_the_reason_told():
    for method in ("lora", "full"):
        precision = choose_precision(method, OLD_CPU)
        assert (precision.dtype, precision.bf16) == ("float32", False)
        assert "no bf16 arithmetic" in precision.why


def test_what_the_recipe_says_wins():
    assert choose_precision("lora", GPU, dtype="float32") == Precision("float32", bf16=True, fp16=False)
    assert choose_precision("lora", GPU, dtype="float32", bf16=False) == Precision("float32", bf16=False, fp16=False)
    assert choose_precision("lora", OLD_CPU, bf16=True) == Precision("bfloat16", bf16=True, fp16=False)
    assert choose_precision("lora", OLD_GPU, fp16=True) == Precision("float16", bf16=False, fp16=True)


@pytest.mark.parametrize("settings", [{"fp16": True}, {"dtype": "float16"}])
def test_fp16_on_a_cpu_is_refused(settings):
    with pytest.raises(UserError, match="does not train on a CPU"):
        choose_precision("lora", CPU, **settings)


def test_fp16_and_bf16_together_are_refused():
    with pytest.raises(UserError, match="keep one"):
        choose_precision("lora", GPU, fp16=True, bf16=True)


def test_this_machine_is_recognised():
    import torch

    assert detect_hardware().device == ("cuda" if torch.cuda.is_available() else "cpu")
