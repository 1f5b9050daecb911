from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.mixing.interleave import Schedule
from hf_recipes.data.mixing.mixture import choose_mixture

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=60)


def run(schedule, sources):
    """The numbers of the sources in the order in which they give their samples, with the sizes."""
    left = [list(sizes) for sizes in sources]
    given_samples = []
    while (source := schedule.pick([sizes[0] if sizes else None for sizes in left])) is not None:
        size = left[source].pop(0)
        schedule.take(source, size)
        given_samples.append((source, size))
    return given_samples


@given(st.lists(SIZES, min_size=1, max_size=3), st.lists(SIZES, min_size=1, max_size=3), st.floats(0, 0.5), st.data())
def test_every_beginning_has_the_share_to_half_a_sample(domain, general, share, data):
    general = [sizes * 60 for sizes in general]  # more than is needed
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=6, max_size=6))[: len(domain) + len(general)]
    schedule = Schedule(share, [False] * len(domain) + [True] * len(general), weights)
    samples = run(schedule, domain + general)
    half = max(size for sizes in domain + general for size in sizes) / 2 + 1e-6
    size = general_size = 0
    for source, sample in samples:
        size, general_size = size + sample, general_size + sample * (source >= len(domain))
        assert abs(share * size - general_size) <= half
    # All of the domain is used once, and then the general part is as near to its size as whole samples can be.
    domain_size = sum(map(sum, domain))
    assert size - general_size == domain_size
    assert abs(general_size - domain_size * share / (1 - share)) <= half


@given(st.integers(1, 300), st.floats(0, 0.6))
def test_rows_are_those_of_the_map_style_mixture(domain, share):
    samples = run(Schedule(share, [False, True], [1, 1]), [[1] * domain, [1] * 500])
    chosen = choose_mixture(domain, [np.ones(500, np.int64)], share, 0).chosen[0]
    assert sum(source for source, _ in samples) == len(chosen)


def test_d5_850_and_150_rows_alternate_evenly():
    samples = [source for source, _ in run(Schedule(0.15, [False, True], [1, 1]), [[1] * 850, [1] * 9999])]
    assert len(samples) == 1000 and sum(samples) == 150
    # 15 of every hundred.
    assert [sum(samples[start : start + 100]) for start in range(0, 1000, 100)] == [15] * 10


def test_weights_hold_within_a_part_and_others_take_over():
    # 900 domain rows at 1/4 call for 300 general ones: 20 that the first has, the rest 3 : 1.
    samples = run(Schedule(0.25, [False, True, True, True], [1, 5, 3, 1]), [[1] * 900, [1] * 20, [1] * 999, [1] * 999])
    given_rows = [sum(source == number for source, _ in samples) for number in range(4)]
    assert given_rows == [900, 20, 210, 70]


def test_domain_sources_are_mixed_by_their_pace():
    samples = [source for source, _ in run(Schedule(0, [False, False], [30, 10]), [[1] * 30, [1] * 10])]
    assert [sum(samples[start : start + 4]) for start in range(0, 40, 4)] == [1] * 10


def test_a_new_lap_forgets_what_general_sources_gave_before():
    schedule = Schedule(0.5, [False, True, True], [1, 1, 1])
    for source, size in ((0, 10), (1, 2), (2, 8)):
        schedule.take(source, size)
    assert schedule.pick([10, 1, 1]) == 1
    schedule.take(0, 10)
    schedule.start_lap()
    # Had the laps been counted together, the first source would give 6 samples before the second's first.
    heads = []
    for _ in range(4):
        source = schedule.pick([10, 1, 1])
        heads.append(source)
        schedule.take(source, 1)
    assert heads == [1, 2, 1, 2]
    assert schedule.reached == 14 / 34
