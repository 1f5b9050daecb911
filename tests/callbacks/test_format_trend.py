"""A share that falls to half of its best, twice, is told once."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.callbacks.format_trend import FormatTrend

SHARES = st.lists(st.floats(0, 1), max_size=30)


def test_the_second_low_share_rings_and_a_good_one_arms_it_again():
    trend = FormatTrend()
    assert [trend.judge(share) for share in (1, 0.5, 0.4, 0.3, 0.9, 0.2, 0.2)] == [
        *(False, False, True, False, False, False, True)
    ]


@given(SHARES)
def test_shares_above_half_of_the_best_never_ring(shares):
    trend = FormatTrend()
    assert not any(trend.judge(0.51 + 0.49 * share) for share in shares)


@given(SHARES, st.integers(0, 30))
def test_state_survives_json_at_any_point(shares, cut):
    whole, first, resumed = FormatTrend(), FormatTrend(), FormatTrend()
    expected = [whole.judge(share) for share in shares]
    before = [first.judge(share) for share in shares[:cut]]
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + [resumed.judge(share) for share in shares[cut:]] == expected
