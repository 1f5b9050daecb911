from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.trace.carry import carry_on, layers_to_trace


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(5, 200))
def test_what_grows_by_the_layer_is_carried_on_exactly(fixed, a_layer, layers):
    def memory(count):
        return MemoryEstimate({"forward": {"weights": fixed + a_layer * count, "logits": fixed}})

    carried = carry_on(memory(2), memory(4), (2, 4), layers)
    assert carried.phases["forward"] == pytest.approx(memory(layers).phases["forward"])


@pytest.mark.parametrize(
    ("layers", "checkpointing", "counts"),
    [(32, "off", (2, 4)), (32, "every_3", (6, 12)), (4, "all", None), (16, "every_4", None), (17, "every_4", (8, 16))],
)
def test_a_whole_period_of_checkpointing_is_traced_twice(layers, checkpointing, counts):
    assert layers_to_trace(layers, checkpointing) == counts
