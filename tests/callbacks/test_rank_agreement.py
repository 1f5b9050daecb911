"""What ranks must say alike, as properties."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.rank_agreement import RankAgreement, StartFacts, by_value, hash_of, rank_names
from hf_recipes.callbacks.reading import RankShare

FACTS = StartFacts(
    world_size=2,
    seed=42,
    data_seed=None,
    max_steps=100,
    micro_batches=4,
    rows=1000,
    batches=125,
    sampled_rows="ab",
    trainable=12,
    parameters="cd",
    versions="torch 2",
    fingerprint="x",
)
OTHER = {
    "world_size": 3,
    "seed": 43,
    "max_steps": 99,
    "micro_batches": 2,
    "rows": 999,
    "batches": 124,
    "sampled_rows": "ac",
    "trainable": 11,
    "parameters": "ce",
    "versions": "torch 3",
}
NORMS = st.floats(1e-6, 1e6)


def share(step=7, micro_batches=4, norm=1.0, rows=8):
    return RankShare(step, micro_batches, rows, rows * 10, rows * 5, norm)


def kinds(found):
    return [each.kind for each in found]


@pytest.mark.parametrize(("key", "value"), OTHER.items())
def test_each_fact_that_differs_is_named_with_its_rank_and_value(key, value):
    (found,) = RankAgreement().judge_start(0, [FACTS, FACTS, replace(FACTS, **{key: value})])
    assert (found.kind, found.what) == ("start", key)
    assert f"ranks 0 and 1: {getattr(FACTS, key)}; rank 2: {value}" in found.sentence
    assert found.values == [getattr(FACTS, key)] * 2 + [value]


def test_what_a_rank_does_not_know_and_how_it_hashed_its_data_is_no_alarm():
    unknown = replace(FACTS, rows=None, batches=None, sampled_rows=None, fingerprint="y")
    assert RankAgreement().judge_start(0, [FACTS, FACTS]) == []
    assert RankAgreement().judge_start(0, [FACTS, unknown]) == []


def test_two_data_seeds_are_named():
    found = RankAgreement().judge_start(0, [replace(FACTS, data_seed=1), replace(FACTS, data_seed=2)])
    assert [each.what for each in found] == ["data_seed"]


@settings(deadline=None)
@given(st.integers(1, 16), st.lists(NORMS, min_size=1, max_size=60), st.data())
def test_ranks_that_agree_never_alarm(world, norms, data):
    agreement = RankAgreement()
    for step, norm in enumerate(norms):
        rows = data.draw(st.integers(1, 9))  # the last batch of an epoch may be short on some ranks
        shares = [share(step, 4, norm, rows + rank % 2) for rank in range(world)]
        assert agreement.judge_step(shares, compare_norms=True) == []
        assert agreement.judge_parameters(step, [[step, 5]] * world, ["a", "b"]) is None


@settings(deadline=None)
@given(st.integers(2, 16), st.data(), st.integers(-20, 20))
def test_one_rank_apart_is_seen_at_once_whoever_it_is_at_any_scale(world, data, exponent):
    odd = data.draw(st.integers(0, world - 1))
    factor = data.draw(st.sampled_from([0.5, 0.99, 1.01, 3.0]))
    scale = 2.0**exponent
    shares = [share(norm=scale * (factor if rank == odd else 1.0)) for rank in range(world)]
    assert kinds(RankAgreement().judge_step(shares, compare_norms=True)) == ["gradient"]
    assert RankAgreement().judge_step(shares, compare_norms=False) == []  # sharded: each holds another part
    late = [share(micro_batches=3 if rank == odd else 4) for rank in range(world)]
    (found,) = RankAgreement().judge_step(late, compare_norms=True)
    assert found.kind == "step"
    assert "step 7, 3 micro-batches" in found.sentence
    sums = [[1, 2 + (rank == odd)] for rank in range(world)]
    found = RankAgreement().judge_parameters(7, sums, ["first", "second"])
    assert "1 of 2 trainable tensors" in found.sentence
    assert "the first second" in found.sentence


@settings(deadline=None)
@given(st.sampled_from([math.nan, math.inf, None]))
def test_t6_a_norm_that_is_not_finite_is_left_out_and_ends_no_series(bad):
    agreement = RankAgreement()
    assert agreement.judge_step([share(norm=1.0), share(norm=bad)], compare_norms=True) == []
    assert kinds(agreement.judge_step([share(norm=1.0), share(norm=2.0)], compare_norms=True)) == ["gradient"]
    assert agreement.judge_step([share(norm=bad), share(norm=bad)], compare_norms=True) == []
    assert agreement.judge_step([share(norm=1.0), share(norm=2.0)], compare_norms=True) == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=30), st.integers(0, 30))
def test_one_alarm_a_series_also_over_a_resume(steps, cut):
    agreement = RankAgreement()
    for place, faults in enumerate(steps):
        if place == cut:
            state = json.loads(json.dumps(agreement.state_dict()))
            agreement = RankAgreement()
            agreement.load_state_dict(state)
        step_differs, norm_differs, weights_differ = faults
        shares = [share(place), share(place + step_differs, norm=1.0 + norm_differs)]
        found = kinds(agreement.judge_step(shares, compare_norms=True))
        if agreement.judge_parameters(place, [[1], [1 + weights_differ]], ["a"]):
            found.append("parameters")
        before = steps[place - 1] if place else (False, False, False)
        names = ("step", "gradient", "parameters")
        assert found == [name for name, now, was in zip(names, faults, before, strict=True) if now and not was]


def test_ranks_are_grouped_by_value():
    assert by_value([1, 2, 1]) == "ranks 0 and 2: 1; rank 1: 2"
    assert rank_names(list(range(9))) == "ranks 0, 1, 2, 3 and 5 more"
    assert rank_names(list(range(5))) == "ranks 0, 1, 2, 3 and 4"


def test_the_hash_minds_order_and_sign():
    assert len({hash_of(sums) for sums in ([1, 2], [2, 1], [-1, 2], [1])}) == 4
    assert hash_of([-(2**63), 2**63 - 1]) == hash_of([-(2**63), 2**63 - 1])
