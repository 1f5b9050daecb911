"""A file of a measurement: taken back as it was, or refused by the first value that none has."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.doctor.network.curve import COLLECTIVES, Timing
from hf_recipes.doctor.network.links import Link
from hf_recipes.doctor.network.measured import Measured, read_measured
from hf_recipes.doctor.network.report import as_text, as_values

GOOD = Measured(
    "gloo",
    ("node0", "node1"),
    tuple(Timing(name, size, size / 1e9, 2) for name in COLLECTIVES for size in (2**10, 2**26)),
    (Link(0, 1, "node0", "node1", 1e9, 1e-4), Link(1, 0, "node1", "node0", 1e9, 1e-4)),
)
VALUES = json.loads(json.dumps(as_values(GOOD)))
HUGE = 10**400  # JSON has whole numbers that no float holds


def changed(place, value):
    values = copy.deepcopy(VALUES)
    *path, last = place
    inner = values
    for step in path:
        inner = inner[step]
    inner[last] = value
    return values


def test_what_was_written_is_taken_back():
    assert read_measured(VALUES, "f.json") == GOOD


def test_what_follows_from_the_rest_is_not_read():
    assert read_measured(changed(["slow"], 5), "f.json") == GOOD
    assert read_measured(changed(["collectives", 0, "bus_bandwidth"], "fast"), "f.json") == GOOD


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["hosts"], [1, {}], "hosts: 1 is no name"),
        (["hosts"], [], "hosts: [] is no list"),
        (["hosts"], "abc", "hosts: 'abc' is no list"),
        (["hosts"], ["node0"], "hosts: 1 of them"),
        (["hosts"], ["node0", "node1", "node2"], "ranks: 2 of all_reduce, and 3 hosts"),
        (["backend"], 3, "backend: 3 is no name"),
        (["collectives"], {}, "collectives: {} is no list"),
        (["collectives", 0], "row", "collectives: 'row' is no row"),
        (["collectives", 0, "collective"], "all_to_all", "'all_to_all' is none of all_reduce"),
        (["collectives", 0, "collective"], [], "collective: [] is none of"),
        (["collectives", 0, "size_bytes"], 0, "size_bytes: 0 is no whole number"),
        (["collectives", 0, "size_bytes"], 1.5, "size_bytes: 1.5 is no whole number"),
        (["collectives", 0, "size_bytes"], True, "size_bytes: True is no whole number"),
        (["collectives", 0, "size_bytes"], HUGE, "size_bytes: 1000"),
        (["collectives", 0, "size_bytes"], 2**26, "at each of two sizes or more"),
        (["collectives", 0, "seconds"], float("nan"), "seconds: nan is no number"),
        (["collectives", 0, "seconds"], 1e308, "seconds: 1e+308 is no number"),
        (["collectives", 0, "seconds"], HUGE, "seconds: 1000"),
        (["collectives", 0, "seconds"], -1, "seconds: -1 is no number"),
        (["collectives", 0, "seconds"], "fast", "seconds: 'fast' is no number"),
        (["collectives", 0, "ranks"], None, "ranks: nothing is no whole number"),
        (["links"], 5, "links: 5 is no list"),
        (["links", 0], 5, "links: 5 is no row"),
        (["links", 0, "source"], 2, "source: 2 is no whole number from 0 to 1"),
        (["links", 0, "source"], 1, "links: 1 \u2192 1 does not lie between"),
        (["links", 0, "source_host"], "node7", "links: 0 \u2192 1 does not lie between"),
        (["links", 0, "bytes_per_second"], 0, "bytes_per_second: 0 is no number"),
        (["links", 0, "latency_seconds"], float("inf"), "latency_seconds: inf is no number"),
    ],
)
def test_the_first_wrong_value_is_named(place, value, words):
    with pytest.raises(UserError) as found:
        read_measured(changed(place, value), "f.json")
    assert words in str(found.value)
    assert "'f.json' is no measurement" in str(found.value)


def test_all_sizes_equal_are_no_curve():
    values = copy.deepcopy(VALUES)
    values["collectives"] = [row for row in values["collectives"] if row["size_bytes"] == 1024]
    with pytest.raises(UserError, match="two sizes"):
        read_measured(values, "f.json")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
PLACES = [["hosts"], ["hosts", 0], ["backend"], ["slow"], ["collectives"], ["links"]] + [
    [table, 0, *name] for table in ("collectives", "links") for name in ([], *([key] for key in VALUES[table][0]))
]


@given(st.sampled_from(PLACES), ANYTHING)
def test_any_value_in_any_place_is_shown_or_refused(place, value):
    try:
        found = read_measured(changed(place, value), "f.json")
    except UserError:
        return
    assert as_text(as_values(found))
