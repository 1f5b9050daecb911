from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.pipeline.cut import bubble, cut_layers

sizes = st.floats(0, 12, allow_nan=False)


@given(st.integers(1, 8), st.integers(1, 4), sizes, sizes)
def test_each_layer_is_on_one_stage_and_no_other_cut_is_better(layers, stages, embedding, head):
    if stages > layers:
        with pytest.raises(UserError, match=rf"{stages} stages cannot share {layers} layers"):
            cut_layers(layers, stages)
        return
    parts = cut_layers(layers, stages, embedding=embedding, head=head)
    assert [layer for part in parts for layer in part.layers] == list(range(layers))
    assert all(len(part.layers) >= 1 for part in parts)
    counts = tuple(len(part.layers) for part in parts)
    every = (each for each in itertools.product(range(1, layers + 1), repeat=stages) if sum(each) == layers)
    assert fullest(counts, embedding, head) <= min(fullest(each, embedding, head) for each in every) + 1e-6


def fullest(counts, embedding, head):
    sizes = [float(count) for count in counts]
    sizes[0] += embedding
    sizes[-1] += head
    return max(sizes)


def test_ends_are_told_and_the_later_stage_gets_the_layer_more():
    parts = cut_layers(7, 3)
    assert [len(part.layers) for part in parts] == [2, 2, 3]
    assert [(part.first, part.last) for part in parts] == [(True, False), (False, False), (False, True)]


def test_a_large_embedding_leaves_its_stage_fewer_layers():
    # 30 layers, embedding and tied head as much as 8 each (SmolLM2-135M): (30 + 16) / 4 = 11.5 a stage.
    assert [len(part.layers) for part in cut_layers(30, 4, embedding=8, head=8)] == [3, 11, 12, 4]


def test_the_bubble_is_that_of_the_papers():
    # GPipe: 4 stages, 8 micro-batches: 3 of 11 slots are idle. One stage never waits.
    assert bubble(4, 8) == pytest.approx(3 / 11)
    assert bubble(1, 8) == 0
