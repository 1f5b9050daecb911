from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.report.scale import duration, number, wants_log

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1, "1"),
        (0.5, "0.5"),
        (1234.56, "1235"),
        (2e-5, "2e-5"),
        (0.00012345, "1.23e-4"),
        (1.5e6, "1.5e6"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers_are_short(value, shown):
    assert number(value) == shown


@given(FINITE)
def test_a_shown_number_is_within_a_hundredth(value):
    shown = number(value)
    assert len(shown) <= 10
    if 1e-300 < abs(value) < 1e300:
        assert float(shown) == pytest.approx(value, rel=6e-3)


def test_a_logarithm_only_for_positive_values_of_a_wide_range():
    assert wants_log(np.array([0.01, 1.0]))
    assert not wants_log(np.array([0.1, 1.0]))
    assert not wants_log(np.array([0.0, 1.0]))
    assert not wants_log(np.array([-1.0, 100.0]))
    assert not wants_log(np.zeros(0))


@pytest.mark.parametrize(("seconds", "shown"), [(3.4, "3 s"), (119, "119 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations_have_the_unit_of_their_size(seconds, shown):
    assert duration(seconds) == shown
