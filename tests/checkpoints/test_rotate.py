from __future__ import annotations

import shutil

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.checkpoints.rotate import choose_removals, rotate_checkpoints

steps = st.dictionaries(st.integers(1, 50), st.booleans(), min_size=1)


def test_the_oldest_good_ones_go():
    assert choose_removals({10: True, 20: True, 30: True}, limit=2, current=30) == [10]


def test_the_best_one_stays_and_counts():
    assert choose_removals({10: True, 20: True, 30: True}, limit=2, current=30, best=10) == [20]


def test_the_best_one_stays_even_beyond_the_limit():
    assert choose_removals({10: True, 20: True, 30: True}, limit=1, current=30, best=10) == [20]


def test_unverified_ones_do_not_count_so_the_last_good_one_stays():
    assert choose_removals({10: True, 20: False, 30: True}, limit=2, current=30) == [20]


def test_newer_ones_of_an_earlier_attempt_are_not_touched():
    assert choose_removals({10: True, 12: True, 20: True, 30: False}, limit=1, current=12) == [10]


def test_the_trial_goes_without_a_limit_too_and_does_not_count():
    assert choose_removals({1: True, 20: True}, limit=None, current=20, trial=1) == [1]
    assert choose_removals({1: True, 10: True, 20: True}, limit=2, current=20, trial=1) == [1]
    assert choose_removals({1: True, 10: True, 20: True}, limit=1, current=20, trial=1) == [1, 10]


def test_the_trial_stays_while_it_is_the_newest_or_the_best():
    assert choose_removals({1: True}, limit=1, current=1, trial=1) == []
    assert choose_removals({1: True, 10: True, 20: True}, limit=1, current=20, best=1, trial=1) == [10]


def test_one_whose_removal_was_cut_short_does_not_count(full_run):
    for mark in ("trainer_state.json", "verified.json"):
        (full_run / "checkpoint-1" / mark).unlink()
    shutil.copytree(full_run / "checkpoint-2", full_run / "checkpoint-3")
    removed = rotate_checkpoints(full_run, 2, 3, None, verified_only=True)
    assert removed == [full_run / "checkpoint-1"]
    assert sorted(path.name for path in full_run.iterdir() if path.is_dir()) == ["checkpoint-2", "checkpoint-3"]


@given(steps, st.integers(1, 5), st.data())
def test_enough_good_ones_are_left_and_nothing_protected_goes(good, limit, data):
    current = data.draw(st.sampled_from(sorted(good)))
    best = data.draw(st.none() | st.sampled_from(sorted(good)))
    good[current] = True
    removed = choose_removals(good, limit, current, best)
    assert not {current, best} & set(removed)
    assert all(step < current for step in removed)
    before = sum(good.values())
    after = sum(verified for step, verified in good.items() if step not in removed)
    assert after >= 1
    if best is None or good[best]:
        assert after >= min(before, limit)
