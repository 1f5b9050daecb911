"""Stretches of time, against the same arithmetic done moment by moment."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.profiling.intervals import Named, Timeline, common, innermost, merged, total, without

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: tuple(sorted(pair))))


def moments(stretches):
    """Unit moments that whole-numbered intervals cover."""
    return {moment for start, end in stretches for moment in range(start, end)}


def is_disjoint_and_ascending(stretches):
    return all(a[0] < a[1] < b[0] for a, b in itertools.pairwise(stretches))


@given(intervals, intervals)
def test_union_overlap_and_difference_are_those_of_sets(left, right):
    a, b = merged(left), merged(right)
    assert moments(a) == moments(left) and is_disjoint_and_ascending(a)
    assert total(a) == len(moments(left))
    assert moments(common(a, b)) == moments(left) & moments(right)
    assert moments(without(a, b)) == moments(left) - moments(right)


@st.composite
def nested(draw, start=0, end=64, depth=3):
    """Properly nested ranges inside [start, end], outer before inner."""
    ranges, at = [], start
    while at < end and depth and draw(st.booleans()):
        first = draw(st.integers(at, end - 1))
        last = draw(st.integers(first + 1, end))
        ranges.append(Named(first, last, f"{depth}@{first}"))
        ranges += draw(nested(first, last, depth - 1))
        at = last
    return ranges


@given(nested(), st.randoms())
def test_a_moment_belongs_to_the_innermost_range_that_covers_it(ranges, random):
    outer_first = list(ranges)
    segments = innermost(random.sample(ranges, len(ranges)))
    timeline = Timeline(segments)
    for moment in range(-1, 66):
        covering = [r for r in outer_first if r.start <= moment < r.end]
        # Of ranges that begin and end together none is inside the other; by depth the last one listed is.
        innermost_span = min(((r.end - r.start) for r in covering), default=None)
        names = {r.name for r in covering if r.end - r.start == innermost_span}
        assert timeline.at(moment) in (names or {None})
    assert sum(s.end - s.start for s in segments) == len(moments((r.start, r.end) for r in ranges))
    assert all(a.end <= b.start for a, b in itertools.pairwise(segments))


def test_a_child_that_outlasts_its_parent_is_cut():
    segments = innermost([Named(0, 10, "step"), Named(4, 10.5, "data"), Named(11, 12, "step")])
    assert segments == [Named(0, 4, "step"), Named(4, 10, "data"), Named(11, 12, "step")]
