from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from rating_files import items

from hf_recipes.evaluation.rating.items import RatingItem
from hf_recipes.evaluation.rating.sample import allotted, by_prompt_length, stratified

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@settings(deadline=None)
@given(SIZES, st.data())
def test_every_place_is_given_and_none_beyond_a_stratum(sizes, data):
    count = data.draw(st.integers(0, sum(sizes)))
    places = allotted(sizes, count)
    assert sum(places) == count
    assert all(0 <= place <= size for place, size in zip(places, sizes, strict=True))
    if count >= len(sizes):
        assert min(places) >= 1


@settings(deadline=None)
@given(SIZES, st.integers(1, 100))
def test_shares_are_exact_to_one_where_nobody_is_lifted(sizes, count):
    count = min(count, sum(sizes))
    quotas = [count * size / sum(sizes) for size in sizes]
    if min(quotas) >= 1:
        assert all(abs(place - quota) < 1 for place, quota in zip(allotted(sizes, count), quotas, strict=True))


def test_largest_remainders_by_hand():
    # quotas of 7 places: 50·7/100 = 3.5, 30·7/100 = 2.1, 20·7/100 = 1.4: the place left over goes to the first
    assert allotted([50, 30, 20], 7) == [4, 2, 1]
    assert allotted([97, 2, 1], 4) == [2, 1, 1]


def test_a_sample_is_seeded_in_order_and_balanced():
    all_items = items(90, strata=3)
    drawn = stratified(all_items, 30, seed=5)
    assert drawn == stratified(all_items, 30, seed=5)
    assert drawn != stratified(all_items, 30, seed=6)
    assert [item.number for item in drawn] == sorted({item.number for item in drawn})
    assert Counter(item.stratum for item in drawn) == {"s0": 10, "s1": 10, "s2": 10}
    assert stratified(all_items, 500, seed=5) == all_items


def test_thirds_by_the_length_of_prompts():
    some = [RatingItem(number, "x" * number, "", {"a": "", "b": ""}) for number in (9, 1, 5, 3, 7, 11)]
    strata = {item.number: item.stratum for item in by_prompt_length(some)}
    short, middling, long = ("short prompt", "middling prompt", "long prompt")
    assert [strata[number] for number in (1, 3, 5, 7, 9, 11)] == [short, short, middling, middling, long, long]
