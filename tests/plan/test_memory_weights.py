"""Bytes of weights and optimizer states, against the tensors that libraries really make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.plan.geometry import TensorShape
from hf_recipes.plan.memory.optimizer import UnknownOptimizer, optimizer_kind, state_bytes, step_bytes
from hf_recipes.plan.memory.weights import four_bit_bytes, tensor_bytes, width_of
from hf_recipes.plan.settings import TrainingSettings

LINEAR = TensorShape("w", (192, 320), "mlp", 0, trained=False, linear=True)


@pytest.mark.parametrize("double", [True, False])
def test_four_bit_bytes_are_those_of_bitsandbytes(double: bool) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    import torch

    packed, state = functional.quantize_4bit(
        torch.randn(192, 320), blocksize=64, quant_type="nf4", compress_statistics=double
    )
    tensors = [packed, state.absmax, state.code]
    if double:
        tensors += [state.state2.absmax, state.state2.code, state.offset]
    expected = sum(each.numel() * each.element_size() for each in tensors)
    assert four_bit_bytes(192 * 320, double_quantization=double) == expected


def test_bits_a_weight_of_large_tensors() -> None:
    # Half a byte and a byte a block of 64, or four bytes a block.
    assert 8 * four_bit_bytes(2**24, double_quantization=True) / 2**24 == pytest.approx(4.127, abs=0.002)
    assert 8 * four_bit_bytes(2**24, double_quantization=False) / 2**24 == pytest.approx(4.5, abs=0.001)


def test_int8_has_a_scale_a_row() -> None:
    assert tensor_bytes(LINEAR, TrainingSettings(quantization="int8")) == 192 * 320 + 4 * 192


def test_only_linear_layers_are_quantised_and_the_rest_is_widened_by_kbit_preparation() -> None:
    norm = TensorShape("n", (320,), "norms", 0, trained=False)
    quantised = TrainingSettings(quantization="nf4")
    assert tensor_bytes(norm, quantised) == 640
    assert tensor_bytes(norm, TrainingSettings(quantization="nf4", kbit_preparation=True)) == 1280
    assert tensor_bytes(LINEAR, quantised) < 192 * 320
    assert width_of(TensorShape("a", (4, 4), "adapter", 0), quantised) == 4


@pytest.mark.parametrize("name", ["adamw_torch", "sgd", "adafactor", "adagrad", "rmsprop", "adamw_8bit", "lion_8bit"])
@pytest.mark.parametrize("shape", [(96, 128), (130,)])
def test_states_are_those_the_optimizer_makes(name: str, shape: tuple[int, ...]) -> None:
    import torch
    from transformers import TrainingArguments
    from transformers.trainer_optimizer import Adafactor

    del TrainingArguments
    weight = torch.nn.Parameter(torch.randn(shape))
    makers = {
        "adamw_torch": lambda p: torch.optim.AdamW(p),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "adafactor": lambda p: Adafactor(p, lr=0.1, scale_parameter=False, relative_step=False),
        "adagrad": lambda p: torch.optim.Adagrad(p),
        "rmsprop": lambda p: torch.optim.RMSprop(p),
    }
    if name.endswith("8bit"):
        bnb = pytest.importorskip("bitsandbytes")
        makers["adamw_8bit"] = lambda p: bnb.optim.AdamW8bit(p)
        makers["lion_8bit"] = lambda p: bnb.optim.Lion8bit(p)
    optimizer = makers[name]([weight])
    weight.grad = torch.randn(shape)
    optimizer.step()
    kept = [each for each in optimizer.state[weight].values() if torch.is_tensor(each) and each.numel() > 1]
    tables = [each for key, each in optimizer.state[weight].items() if "qmap" in key]  # shared by all parameters
    real = sum(each.numel() * each.element_size() for each in kept) - sum(4 * each.numel() for each in tables)
    assert state_bytes(TensorShape("w", shape, "mlp", 0), TrainingSettings(optimizer=name)) == real


def test_bf16_states_and_unknown_optimizers() -> None:
    tensor = TensorShape("w", (10, 10), "mlp", 0)
    assert state_bytes(tensor, TrainingSettings(optimizer_state_dtype="bfloat16")) == 400
    with pytest.raises(UnknownOptimizer, match="galore_adamw"):
        optimizer_kind("galore_adamw")


def test_on_a_cpu_bitsandbytes_steps_one_parameter_at_a_time_in_32_bits() -> None:
    """Five copies in fp32 of the largest that is kept in 8 bits; embeddings are not (measured: 1,027.8 MB, told so)."""
    tensors = [TensorShape("a", (100, 100), "mlp", 0), TensorShape("e", (500, 100), "embeddings", None)]
    eight = TrainingSettings(optimizer="adamw_8bit")
    assert step_bytes(tensors, eight, device="cpu") == 5 * 4 * 100 * 100
    assert step_bytes(tensors, eight, device="cuda") == 0


def test_temporaries_are_of_all_parameters_on_a_gpu_and_of_the_largest_on_a_cpu() -> None:
    tensors = [TensorShape("a", (10, 10), "mlp", 0), TensorShape("b", (30, 10), "mlp", 0)]
    plain = TrainingSettings(optimizer="adamw_torch")
    assert step_bytes(tensors, plain, device="cuda") == 4 * 400
    assert step_bytes(tensors, plain, device="cpu") == 2 * 4 * 300
    assert step_bytes(tensors, TrainingSettings(), device="cuda") == 0


@given(st.integers(1, 10**7))
def test_double_quantisation_never_costs_more_on_what_is_large(count: int) -> None:
    double, single = (four_bit_bytes(count, double_quantization=flag) for flag in (True, False))
    assert double <= single + 1100
    assert count / 2 <= double
