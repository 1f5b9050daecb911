"""The tape: what is alive when, by hand on small chains."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.plan.memory.operations import FULL, HALF, activation, add, cast, dropout, gated, multiply, product
from hf_recipes.plan.memory.tape import ACTIVATIONS, COPIES, GRADIENTS, Tape, Value


def _weight(count: float, width: int = FULL, *, grad: bool = True) -> Value:
    return Value(count, width, grad, parameter=True)


def test_a_linear_layer_keeps_its_input_for_the_weight_alone() -> None:
    for trained, kept in ((True, 400), (False, 0)):
        tape = Tape()
        x = Value(100, FULL, grad=True)
        out = product(tape, x, _weight(50, grad=trained), 5, autocast=None)  # 10 rows of 10 → 5
        segment = tape.run(out, inputs=(x,))
        assert out.count == 50
        assert sum(segment.forward.values()) == 400 + 200
        assert sum(segment.kept.values()) == kept
        # Backward: gradient of the output (200), of the input (400), of the weight (200), and what is kept.
        assert sum(segment.backward.values()) == kept + 200 + 400 + (200 if trained else 0)
        assert segment.gradients == (200 if trained else 0)


def test_autocast_caches_the_copy_of_a_trained_weight_and_casts_a_frozen_one_each_time() -> None:
    for trained in (True, False):
        tape = Tape()
        x = Value(100, FULL, grad=True)
        weight = _weight(100, grad=trained)
        first = product(tape, x, weight, 10, autocast=HALF)
        out = product(tape, first, weight, 10, autocast=HALF)
        segment = tape.run(out, inputs=(x,))
        assert segment.kept[COPIES] == (200 if trained else 400)


def test_an_unkept_cached_copy_stays_until_the_forward_pass_ends() -> None:
    tape = Tape()
    x = Value(100, FULL, grad=False)
    out = product(tape, x, _weight(100), 10, autocast=HALF)
    tape.run(out, inputs=(x,))
    assert tape.cached_unkept == 200


def test_an_addition_hands_its_gradient_on_without_memory() -> None:
    tape = Tape()
    x = Value(100, FULL, grad=True)
    out = add(tape, x, activation(tape, x))
    segment = tape.run(out, inputs=(x,))
    # The kept input, the gradient that both paths share, and the activation's own.
    assert sum(segment.backward.values()) == 400 + 400 + 400


def test_a_gradient_that_comes_twice_is_added_in_place() -> None:
    tape = Tape()
    x = Value(100, FULL, grad=True)
    first, second = activation(tape, x), activation(tape, x)
    out = multiply(tape, first, second)
    segment = tape.run(out, inputs=(x,))
    # x, both activations, and gradients of: out, then both activations; later two of x.
    assert sum(segment.backward.values()) == 3 * 400 + 3 * 400


def test_a_fused_gate_keeps_its_two_inputs_only() -> None:
    tape = Tape()
    gate, up = Value(100, HALF, grad=True), Value(100, HALF, grad=True)
    segment = tape.run(gated(tape, gate, up), inputs=(gate, up))
    assert sum(segment.kept.values()) == 400


def test_dropout_keeps_a_byte_an_element_on_a_gpu_and_a_factor_on_a_cpu() -> None:
    for device, mask in (("cuda", 100), ("cpu", 400)):
        tape = Tape()
        x = Value(100, FULL, grad=True)
        segment = tape.run(dropout(tape, x, 0.1, device=device), inputs=(x,))
        assert segment.kept[ACTIVATIONS] == mask
    assert dropout(Tape(), x, 0.0, device="cuda") is x


def test_without_gradients_nothing_is_kept() -> None:
    tape = Tape()
    x = Value(100, HALF, grad=False)
    out = activation(tape, cast(tape, x, FULL))
    assert sum(tape.run(out, inputs=(x,)).kept.values()) == 0
    assert sum(tape.run_without_grad(out, inputs=(x,)).values()) == 800  # cast and result; x has died


_STEPS = st.lists(st.sampled_from(["act", "cast", "linear", "residual", "mul", "drop"]), min_size=1, max_size=12)


@given(_STEPS, st.booleans(), st.sampled_from([None, HALF]))
def test_nothing_is_lost_or_freed_twice(steps: list[str], trained: bool, autocast: int | None) -> None:
    tape = Tape()
    x = Value(64, FULL, grad=True)
    out, weights = x, 0
    for step in steps:
        if step == "linear":
            weights += 1
            out = product(tape, out, _weight(64, grad=trained), 8, autocast=autocast)
        else:
            out = {
                "act": lambda v: activation(tape, v),
                "cast": lambda v: cast(tape, v, HALF if v.width == FULL else FULL),
                "residual": lambda v: add(tape, x, v),
                "mul": lambda v: multiply(tape, v, activation(tape, v)),
                "drop": lambda v: dropout(tape, v, 0.5, device="cuda"),
            }[step](out)
    segment = tape.run(out, inputs=(x,))
    assert all(amount >= 0 for part in (segment.forward, segment.kept, segment.backward) for amount in part.values())
    assert sum(segment.backward.values()) >= sum(segment.kept.values())
    assert sum(segment.forward.values()) >= sum(tape.run_without_grad(out, inputs=(x,)).values())
    assert segment.gradients == weights * 64 * FULL * trained
    assert segment.kept[GRADIENTS] == 0
