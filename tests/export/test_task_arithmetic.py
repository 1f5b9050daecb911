"""Combining updates: PEFT's functions on whole updates, against worked examples and the papers' definitions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.export.combination import METHODS, Combination, Combined
from hf_recipes.export.task_arithmetic import combine, expected_combination

OTHERS = [method for method in METHODS if method != "linear"]
pytestmark = pytest.mark.filterwarnings("ignore:The density 1")


def rule(method="ties", weights=(1.0, 1.0), density=0.5, parameter="w", **settings):
    """As `combine_edits` makes it; the updates themselves are given to the functions under test."""
    return Combined(parameter, (), weights, Combination(method, weights, density, **settings))


@pytest.mark.parametrize(
    ("combined", "expected"),
    [
        # Kept: 3 and -4 of the one, -2.5 and 6 of the other; of -4 and 6 the sign of their sum wins.
        (rule(), [0.0, -2.5, 3.0, 6.0]),
        # All kept; 2 and -2.5, 3 and -1, -4 and 6: the larger wins. Where both agree, their mean.
        (rule(density=1.0), [1.0, -2.5, 3.0, 6.0]),
        # By count, one against one is a plus.
        (rule(density=1.0, majority_sign_method="frequency"), [1.0, 2.0, 3.0, 6.0]),
        # Signs are elected before weights: (2·1 - 1)/2, -1·-2.5, 2·3, -1·6.
        (rule(density=1.0, weights=(2.0, -1.0)), [0.5, 2.5, 6.0, -6.0]),
        (rule("magnitude_prune"), [0.0, -2.5, 3.0, 2.0]),
    ],
    ids=["ties", "no pruning", "by count", "weights", "pruned"],
)
def test_worked_examples(combined, expected):
    updates = [torch.tensor([1.0, 2.0, 3.0, -4.0]), torch.tensor([1.0, -2.5, -1.0, 6.0])]
    assert combine(updates, combined).tolist() == expected


@st.composite
def cases(draw):
    count, seed = draw(st.integers(1, 4)), draw(st.integers(0, 2**31))
    weight = st.floats(-2, 2).filter(lambda value: abs(value) > 0.1)
    weights = tuple(draw(weight) for _ in range(count))
    sign = draw(st.sampled_from(["total", "frequency"]))
    density = draw(st.sampled_from([0.1, 0.5, 0.77, 1.0]))
    combined = rule(draw(st.sampled_from(OTHERS)), weights, density, majority_sign_method=sign, seed=seed)
    random = torch.Generator().manual_seed(seed)
    updates = torch.randn(count, 13, 17, generator=random, dtype=torch.float64)
    if draw(st.booleans()):
        updates = updates.round()  # many equal sizes, and zeros
    return list(updates), combined


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_proofs_own_route_agrees_with_pefts(case):
    exact, combined = case
    room = 1e-6
    off = [value + (torch.rand_like(value) - 0.5) * room for value in exact]
    value = combine([update.float() for update in off], combined).double()
    expected, allowed = expected_combination([(update, torch.full_like(update, room)) for update in exact], combined)
    assert bool(((value - expected).abs() <= allowed).all())


@pytest.mark.parametrize("method", OTHERS)
def test_the_proof_leaves_room_for_rounding_only(method):
    """Neither a sign not elected, nor an element kept that should have gone, nor half a weight goes through."""
    torch.manual_seed(0)
    exact = [torch.randn(40, 50, dtype=torch.float64) for _ in range(3)]
    combined = rule(method, (1.0, 0.5, -1.0), 0.4)
    room = [(update, torch.full_like(update, 1e-7)) for update in exact]
    expected, allowed = expected_combination(room, combined)
    assert (allowed < 1e-4).double().mean() > 0.999
    for other in (
        rule(method, (1.0, 0.5, -0.9), 0.4),
        rule(method, (1.0, 0.5, -1.0), 0.45),
        *([rule(method, (1.0, 0.5, -1.0), 0.4, seed=1)] if "dare" in method else []),
        *([rule(method, (1.0, 0.5, -1.0), 0.4, majority_sign_method="frequency")] if "ties" in method else []),
    ):
        value = combine([update.float() for update in exact], other)
        assert ((value - expected).abs() > allowed).any()


@pytest.mark.parametrize("method", ["dare_linear", "dare_ties"])
def test_darts_are_thrown_for_each_parameter_whatever_the_order_or_the_threads(method):
    updates = [torch.randn(30, 30) for _ in range(2)]
    names = [f"layer.{number}" for number in range(12)]
    alone = {name: combine(updates, rule(method, parameter=name)) for name in names}
    torch.manual_seed(7)
    state = torch.random.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        together = dict(
            zip(names, pool.map(lambda name: combine(updates, rule(method, parameter=name)), names), strict=True)
        )
    assert all(torch.equal(alone[name], together[name]) for name in names)
    assert torch.equal(state, torch.random.get_rng_state())  # nobody else's numbers are used up
    assert not torch.equal(alone[names[0]], alone[names[1]])
    assert not torch.equal(alone[names[0]], combine(updates, rule(method, parameter=names[0], seed=1)))


def test_dare_keeps_the_expected_update():
    """Elements that stay are divided by the density, so the mean over many draws is the update itself."""
    update = torch.ones(200, 200)
    value = combine([update], rule("dare_linear", (1.0,), 0.25))
    assert set(value.unique().tolist()) == {0.0, 4.0}
    assert abs(value.mean() - 1) < 0.05  # 40,000 draws: one standard error is √3/200 ≈ 0.009


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method": "svd"}, "'svd' is none of linear, ties"),
        ({"weights": (1.0, 0.0)}, "numbers other than 0"),
        ({"weights": (float("nan"),)}, "numbers other than 0"),
        ({"density": 0.5}, "linear combination keeps every element"),
        ({"method": "ties"}, "ties needs the share"),
        ({"method": "ties", "density": 0.0}, "above 0 and at most 1"),
        ({"method": "ties", "density": 1.5}, "above 0 and at most 1"),
        ({"method": "ties", "density": 0.5, "majority_sign_method": "mean"}, "neither total nor frequency"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings, match):
    with pytest.raises(UserError, match=match):
        Combination(**settings)
