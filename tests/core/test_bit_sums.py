from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.bit_sums import bit_sum, bit_sums

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.complex128,
]
sizes = st.one_of(st.integers(1, 40), st.sampled_from([1023, 1024, 1025, 8191, 8192, 8193, 20_001]))


def sums(tensor):
    return bit_sums({"": tensor})[""]


def random(dtype, size, seed=0):
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return (10 * numbers).to(dtype)


def as_bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8)


@given(st.sampled_from(DTYPES), sizes, st.data())
def test_every_flipped_bit_changes_both_sums(dtype, size, data):
    tensor = random(dtype, size)
    before = sums(tensor)
    raw = as_bytes(tensor)
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 << data.draw(st.integers(0, 7))
    after = sums(tensor)
    assert before[0] != after[0]
    assert before[1] != after[1]


@given(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), sizes, st.data())
def test_two_exchanged_values_are_seen(dtype, size, data):
    tensor = random(dtype, size)
    one, other = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    exchanged = tensor.clone()
    exchanged[one], exchanged[other] = tensor[other].clone(), tensor[one].clone()
    assert (sums(exchanged) == sums(tensor)) == torch.equal(as_bytes(exchanged), as_bytes(tensor))


@pytest.mark.parametrize("distance", [1, 2, 64, 512, 1024])
def test_exchanged_rows_of_ones_and_zeros_are_seen(distance):
    """Values with many trailing zero bits, a power of two apart: what plain numbers as weights do not see."""
    table = torch.randint(0, 2, (2048, 2048), generator=torch.Generator().manual_seed(0)).float()
    exchanged = table.clone()
    exchanged[[0, distance]] = table[[distance, 0]]
    assert sums(exchanged)[0] == sums(table)[0]
    assert sums(exchanged)[1] != sums(table)[1]


@given(st.sampled_from(DTYPES), st.integers(0, 9), sizes)
def test_a_view_on_any_place_gives_the_sums_of_its_values(dtype, start, size):
    view = random(dtype, start + size)[start:]
    assert sums(view) == sums(view.clone())
    assert bit_sum(view).item() == sums(view)[0] or size * view.element_size() % 8  # bytes left over are counted singly


def test_the_order_in_which_values_lie_in_memory_does_not_matter():
    table = random(torch.float32, 6000).reshape(60, 100)
    assert sums(table.t()) == sums(table.t().contiguous())


def test_empty_and_single_ones_have_sums_too():
    assert sums(torch.empty(0, 3)) == (0, 0)
    assert sums(torch.tensor(3.0)) == sums(torch.tensor([3.0]))
    assert bit_sums({}) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_the_same_sums(dtype):
    tensors = {str(size): random(dtype, size) for size in (1, 7, 1024, 8195, 300_000)}
    assert bit_sums({name: tensor.cuda() for name, tensor in tensors.items()}) == bit_sums(tensors)
