"""What strategies send, and whether a network can take it: golden values with their derivation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.doctor.network.curve import COLLECTIVES, Timing, curves
from hf_recipes.doctor.network.traffic import WEIGHED, StepFigures, messages_of
from hf_recipes.doctor.network.verdict import communication_seconds, sentence_of, weigh, weigh_others

PSI = 14e9  # 7e9 parameters in bf16
BIG = StepFigures(gradient_bytes=PSI, wide_gradient_bytes=PSI, weight_bytes=PSI, layers=32, hidden_bytes=2**24)


def network(bytes_per_second, latency=0.0):
    """Every collective at one algorithm bandwidth, and a latency."""
    return curves(
        [Timing(name, size, latency + size / bytes_per_second, 8) for name in COLLECTIVES for size in (2**10, 2**26)]
    )


@pytest.mark.parametrize(
    ("strategy", "times"),
    # Rajbhandari et al., section 7: 2Ψ for plain data parallelism, 3Ψ for stage 3 and FSDP. Stages 1 and 2 have 2Ψ
    # there; DeepSpeed reduces their gradients to all ranks, which is Ψ more.
    [("ddp", 2), ("zero1", 3), ("zero2", 3), ("zero3", 3), ("fsdp", 3), ("zero3_offload", 3)],
)
def test_volumes_are_those_of_the_zero_paper(strategy, times):
    assert sum(message.passed_bytes for message in messages_of(strategy, BIG)) == pytest.approx(times * PSI)


def test_tensor_parallelism_reduces_a_hidden_state_seven_times_a_layer():
    # After attention and MLP, and the gradients of what query, key, value, gate and up were given.
    (message,) = messages_of("tp", BIG)
    assert (message.count, message.size_bytes) == (7 * 32, 2**24)
    with pytest.raises(UserError, match="hidden_size"):
        messages_of("tp", StepFigures(1, 1, 1))


def test_accumulation_multiplies_what_is_sent_in_each_pass_only():
    four = StepFigures(PSI, PSI, PSI, passes=4)
    passed = {
        name: sum(each.passed_bytes for each in messages_of(name, four)) / PSI
        for name in ("ddp", "zero1", "zero2", "zero3")
    }
    assert passed == pytest.approx({"ddp": 2, "zero1": 3, "zero2": 9, "zero3": 12})


def test_smaller_messages_pay_the_latency_more_often():
    few, many = network(1e9, latency=0.01), messages_of("ddp", BIG)
    # 14e9 bytes in pieces of 25 MiB are 534.06: 535 latencies of 10 ms, and 14 s at 1 GB/s. Between the two sizes that
    # were measured the line is exact.
    assert communication_seconds(many, few) == pytest.approx(14 + 535 * 0.01, rel=1e-3)


def test_more_than_half_of_a_step_is_too_much():
    # Ψ by all-reduce and Ψ by gather, each at 1 GB/s of the whole: 28 s. A rank passes 2Ψ and Ψ.
    assert weigh("zero2", BIG, network(1e9), 28.1).ok
    verdict = weigh("zero2", BIG, network(1e9), 27.9)
    assert not verdict.ok
    assert verdict.share == pytest.approx(28 / 55.9, rel=1e-3)
    told = sentence_of(verdict, weigh_others("zero2", BIG, network(1e9), 27.9))
    assert "zero2 passes 42 GB a rank and step in 280 messages, which takes 28 s" in told
    assert "take ddp where it fits" in told
    assert "can live with" in sentence_of(weigh("zero2", BIG, network(1e9), 100.0))


@given(st.sampled_from(WEIGHED), st.floats(1e6, 1e12), st.floats(1e-3, 1e3))
def test_a_faster_network_or_a_longer_step_is_never_worse(strategy, speed, seconds):
    share = weigh(strategy, BIG, network(speed), seconds).share
    assert 0 < share < 1
    assert weigh(strategy, BIG, network(2 * speed), seconds).share <= share
    assert weigh(strategy, BIG, network(speed), 2 * seconds).share <= share


@pytest.mark.parametrize(("strategy", "seconds", "words"), [("zero4", 1.0, "did you mean"), ("ddp", 0.0, "no time")])
def test_what_cannot_be_weighed_is_said(strategy, seconds, words):
    with pytest.raises(UserError, match=words):
        weigh(strategy, BIG, network(1e9), seconds)


def test_a_collective_that_was_not_measured_is_said():
    measured = curves([Timing("broadcast", 1, 1.0, 2)])
    with pytest.raises(UserError, match="all_reduce was not measured"):
        weigh("ddp", BIG, measured, 1.0)


def test_nothing_trained_sends_nothing():
    assert messages_of("ddp", StepFigures(0, 0, PSI)) == []
    assert weigh("ddp", StepFigures(0, 0, PSI), network(1e9), 1.0).share == 0
