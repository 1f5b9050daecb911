"""What is left of a small update when its sum with the base is rounded to 16 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.export.proofs.kept_update import KeptUpdate, thinned


def kept(base, update, dtype):
    """The share, from its definition in fp64."""
    left = (base + update).to(dtype).double() - base.to(dtype).double()
    return float((left * update.double()).sum() / update.double().square().sum())


@given(st.integers(-6, 1), st.sampled_from([torch.bfloat16, torch.float16]), st.integers(0, 1000))
def test_the_share_is_that_of_its_definition(exponent, dtype, seed):
    random = torch.Generator().manual_seed(seed)
    base = torch.randn(40, 30, generator=random).to(dtype)
    update = torch.randn(40, 30, generator=random) * 10.0**exponent
    sums = KeptUpdate()
    for rows in (slice(0, 7), slice(7, 40)):
        exact = base[rows].float() + update[rows]
        sums.add(base[rows], exact, exact.to(dtype))
    # fp32 sums hold an update of a millionth of the weight to a tenth
    assert sums.share == pytest.approx(kept(base.float(), update, dtype), rel=0.1, abs=0.02)


def test_a_base_in_fp32_loses_little_of_a_weak_update():
    random = torch.Generator().manual_seed(0)
    base, update = torch.randn(400, 300, generator=random), torch.randn(400, 300, generator=random) * 1e-4
    shares = {}
    for dtype in (torch.float32, torch.bfloat16):
        sums = KeptUpdate()
        exact = base.to(dtype).float() + update
        sums.add(base.to(dtype), exact, exact.bfloat16())
        shares[dtype] = sums.share
    assert shares[torch.float32] == pytest.approx(1, abs=0.1)
    assert shares[torch.bfloat16] < 0.3


def test_an_update_below_half_a_step_is_gone_and_one_above_is_a_whole_step():
    """bf16 after 1 goes on at 1 + 2⁻⁷: 2⁻⁹ more is rounded away, 2⁻⁷ is kept, 2⁻⁸·1.5 becomes 2⁻⁷, 4/3 of itself."""
    base = torch.ones(1)
    for update, share in ((2**-9, 0), (2**-7, 1), (1.5 * 2**-8, 4 / 3)):
        sums = KeptUpdate()
        sums.add(base.bfloat16(), base + update, (base + update).bfloat16())
        assert sums.share == pytest.approx(share)
    assert KeptUpdate().share is None


def test_only_what_should_be_known_is_told():
    assert [thinned(share, "bf16") for share in (None, 1.0, 0.95, 1.1)] == [None] * 4
    assert "keeps 62% of the update" in thinned(0.62, "bf16")
    assert "merge to fp16 (eight times finer) or fp32" in thinned(0.62, "bf16")
    assert "merge to fp32, or serve" in thinned(0.62, "fp16")
