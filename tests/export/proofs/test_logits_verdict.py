"""What the measured numbers are held against."""

from __future__ import annotations

import pytest

from hf_recipes.export.proofs.divergence import Distance
from hf_recipes.export.proofs.verdict import blind_spot, floor_of, is_settled, problems


def measured(kl, worst=None, rms=0.01):
    return Distance(100, kl, worst or 5 * kl, 0.1, rms, 1.0)


def result(kl=1e-5, share=1.0, effect=1e-2, floors=(1e-5,), **more):
    return {
        **measured(kl).to_dict(),
        "floor": floor_of([measured(floor) for floor in floors]),
        "effect": measured(effect, rms=0.5).to_dict(),
        "update_share": share,
        "missing_keys": [],
        "unexpected_keys": [],
        "tokenizer": [],
        **more,
    }


def test_what_rounding_costs_passes():
    assert problems(result(), "bf16") == []
    assert problems(result(kl=2.9e-5), "bf16") == []
    assert problems(result(kl=5.9e-5, floors=(1e-5, 2e-5)), "bf16") == []  # the largest of the draws counts
    assert problems(result(kl=9e-9, floors=(0.0,)), "fp32") == []  # fp32 arithmetic itself


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"kl": 3.1e-5}, "mean KL 3.1e-05 nats, where rounding to bf16 costs 1e-05"),
        ({"kl": float("nan")}, "mean KL nan"),
        ({"kl_mean": None}, "NaN or Inf"),
        ({"kl_max": 6e-4}, "at the worst position"),
        ({"share": 0.97}, "97.00%"),  # 0.2 % and 0.01 / 0.5 = 2 % are allowed
        ({"share": None}, "an unknown part"),
        ({"missing_keys": ["lm_head.weight"]}, "misses 1 tensors in it and does not know 0 .lm_head.weight"),
        ({"tokenizer": ["eos_token is 'x', in training 'y'"]}, "not the trained one: eos_token"),
    ],
)
def test_each_fault_has_its_sentence(spoilt, message):
    (problem, *_) = problems(result(**spoilt), "bf16")
    assert message.replace(".lm", "(lm") in problem


def test_what_rounding_thinned_out_of_the_update_is_allowed_and_told_where_more_is_wrong():
    assert problems(result(share=0.9, update_kept=0.62), "bfloat16") == []
    assert problems(result(kl=1e-3, update_kept=0.62), "bfloat16") == []  # 0.38² · 1e-2 = 1.4e-3 nats
    assert len(problems(result(kl=1e-3, share=0.9), "bfloat16")) == 3  # mean, worst and share
    *found, why = problems(result(share=0.5, update_kept=0.62), "bfloat16")
    assert "50.00% of what the adapter does to the base, ± 40.20%" in found[0]
    assert "rounding to bf16 keeps 62% of the update" in why and "fp16" in why
    assert len(problems(result(share=0.5, update_kept=0.99), "bf16")) == 1


def test_an_adapter_weaker_than_rounding_cannot_be_told_from_none():
    assert "cannot tell the merged model from the base" in str(blind_spot(result(effect=2e-5)))
    assert blind_spot(result()) is None


def test_one_draw_settles_what_is_about_as_large():
    draw = measured(1e-5).to_dict()
    assert is_settled(measured(1.4e-5).to_dict(), draw)
    assert not is_settled(measured(1.6e-5).to_dict(), draw)
    assert not is_settled(measured(1e-5, worst=2e-4).to_dict(), draw)
    assert is_settled(measured(1e-12).to_dict(), measured(0.0).to_dict())
