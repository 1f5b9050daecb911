"""The best trial, edges, seeds; and the median stopping rule."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.sweep.median import median_stop
from hf_recipes.sweep.outcome import Outcome, less_is_better
from hf_recipes.sweep.ranking import Result, best_result, edge_sentences, group_by_seed, spread_sentence
from hf_recipes.sweep.table import Row, cells, sort_rows, terminal

LOSSES = st.lists(st.floats(0.1, 10), min_size=1, max_size=6)


def results(values, key="learning_rate"):
    return [Result(f"t{index}", {key: point, **more}, value) for index, (point, value, more) in enumerate(values)]


@settings(deadline=None, max_examples=40)
@given(LOSSES, st.booleans())
def test_the_first_group_is_the_best(losses, less):
    groups = group_by_seed(results([(index, loss, {}) for index, loss in enumerate(losses)]), less=less)
    assert groups[0].mean == (min if less else max)(losses)
    assert best_result(groups, less=less).value == groups[0].mean


def test_trials_that_differ_in_their_seed_alone_are_one_group():
    groups = group_by_seed(
        results([(1e-5, 1.0, {"seed": 1}), (1e-5, 1.4, {"seed": 2}), (2e-5, 1.3, {"seed": 1})]), less=True
    )
    assert [(group.point, str(group)) for group in groups] == [
        ({"learning_rate": 1e-5}, "1.2 ± 0.2"),
        ({"learning_rate": 2e-5}, "1.3"),
    ]
    assert "below the spread of their seeds (0.4): take either" in spread_sentence(groups, "eval_loss")


def test_a_gap_wider_than_seeds_make_is_a_result():
    groups = group_by_seed(
        results([(1, 1.0, {"seed": 1}), (1, 1.1, {"seed": 2}), (2, 2.0, {"seed": 1}), (2, 2.1, {"seed": 2})]), less=True
    )
    assert spread_sentence(groups, "eval_loss") == (
        "Between the best two points eval_loss differs by 1, more than between their seeds (0.1)."
    )


def test_one_seed_each_says_that_small_differences_are_no_result():
    assert "--seed 1,2,3" in spread_sentence(
        group_by_seed(results([(1, 1.0, {}), (2, 1.1, {})]), less=True), "eval_loss"
    )
    assert spread_sentence(group_by_seed(results([(1, 1.0, {})]), less=True), "eval_loss") is None


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(1e-6, 1), min_size=3, max_size=6, unique=True), st.data())
def test_the_edge_is_told_exactly_where_the_best_is_on_it(rates, data):
    best = data.draw(st.sampled_from(rates))
    groups = group_by_seed(results([(rate, float(rate != best), {}) for rate in rates]), less=True)
    told = edge_sentences(groups)
    assert bool(told) == (best in (min(rates), max(rates)))
    if told:
        assert ("higher" if best == max(rates) else "lower") in told[0]


def test_a_key_of_words_has_no_edge():
    groups = group_by_seed(results([("full", 1.0, {}), ("lora", 2.0, {})], key="method"), less=True)
    assert edge_sentences(groups) == []


@pytest.mark.parametrize(
    ("metric", "less"),
    [
        ("eval_loss", True),
        ("forgetting", True),
        ("seconds per answer", True),
        ("loss on general text", True),
        ("all fields right", False),
        ("JSON that parses", False),
    ],
)
def test_which_side_of_a_metric_is_good(metric, less):
    assert less_is_better(metric) is less


def test_rows_are_sorted_by_how_they_ended_and_then_by_the_target():
    rows = [
        Row("failed", {"learning_rate": 1.0}, Outcome("failed", "out of memory")),
        Row("second", {"learning_rate": 2.0}, Outcome("ok", target=2.0, last_loss=2.0)),
        Row("first", {"learning_rate": 3.0}, Outcome("ok", target=1.0, last_loss=1.0), best=True),
        Row("pruned", {"learning_rate": 4.0}, Outcome("pruned", "worse", target=0.5, last_loss=0.5)),
    ]
    ordered = sort_rows(rows, less=True)
    assert [row.name for row in ordered] == ["first", "second", "pruned", "failed"]
    heads, lines = cells(ordered, "eval_loss")
    assert heads == ["", "lr", "last", "end"]
    assert lines[0] == ["*", "3", "1", "ok"] and lines[3] == ["", "1", "–", "failed"]
    assert "failed: failed: out of memory" in terminal(ordered, "eval_loss", [])


CURVES = st.lists(
    st.lists(st.floats(0.1, 10), min_size=5, max_size=5).map(
        lambda values: list(zip((0.2, 0.4, 0.6, 0.8, 1.0), values, strict=True))
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=40)
@given(CURVES, st.lists(st.floats(0.1, 10), min_size=1, max_size=5))
def test_the_median_rule_is_that_of_the_paper(finished, losses):
    # Golovin et al. 2017, section 3.2.2, said again: best so far against the median of running averages.
    current = list(zip((0.2, 0.4, 0.6, 0.8, 1.0), losses, strict=False))
    stop = median_stop(current, finished)
    averages = [statistics.fmean(loss for _, loss in curve[: len(losses)]) for curve in finished]
    wanted = len(finished) >= 3 and min(losses) > statistics.median(averages)
    # Sums in another order differ in their last bit.
    if len(finished) < 3 or not math.isclose(min(losses), statistics.median(averages), rel_tol=1e-12):
        assert (stop is not None) == wanted


def test_the_median_rule_waits_for_three_trials_and_past_warm_up():
    good = [(0.1, 1.0), (0.5, 0.5)]
    assert median_stop([(0.1, 9.0)], [good] * 3) is None
    assert median_stop([(0.5, 9.0)], [good] * 2) is None
    assert str(median_stop([(0.5, 9.0)], [good] * 3)) == (
        "at 50% of its steps the best loss so far, 9, is above the median of 3 finished trials, 0.75"
    )


def test_a_loss_that_is_not_finite_is_the_worst():
    good = [(0.5, 1.0)]
    assert median_stop([(0.5, math.nan)], [good] * 3) is not None
    assert median_stop([(0.5, 2.0)], [good, good, [(0.5, math.nan)]]) is not None
