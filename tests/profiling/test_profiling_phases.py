"""From trace events to the table, on traces written by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.profiling.matmuls import attention_calls, flops_by_dtype
from hf_recipes.profiling.phases import (
    PARTS,
    PHASES,
    device_busy_share,
    dropout_share,
    phase_rows,
    top_operators,
)
from hf_recipes.profiling.trace import PREFIX, Trace, parse_events


def span(name, start, end):
    return {"ph": "X", "cat": "user_annotation", "name": PREFIX + name, "ts": start, "dur": end - start}


def op(name, start, end, dims=(), dtypes=(), values=(), thread=1):
    arguments = {"Input Dims": list(dims), "Input type": list(dtypes), "Concrete Inputs": list(values)}
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "ts": start,
        "dur": end - start,
        "tid": thread,
        "args": arguments,
    }


def memory(at, allocated, device=0):
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "ts": at,
        "args": {"Device Type": device, "Total Allocated": allocated},
    }


def launch(at, correlation):
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "ts": at,
        "dur": 1,
        "args": {"correlation": correlation},
    }


def kernel(name, start, end, correlation):
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": start,
        "dur": end - start,
        "args": {"correlation": correlation},
    }


STEP = [
    span("step", 0, 1000),
    span("data", 0, 100),
    {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_Iter.__next__", "ts": 10, "dur": 80},
    span("collate", 40, 80),
    span("loss", 120, 500),
    span("forward", 130, 400),
    span("backward", 500, 900),
    span("optimizer", 900, 980),
    span("clip", 900, 930),
]


def by_name(rows):
    return {(row.phase, row.part): row for row in rows}


def test_phases_are_the_innermost_ranges_and_sum_to_the_step():
    rows = phase_rows(parse_events(STEP), "cpu", 0)
    whole = {row.phase: round(row.seconds * 1e6) for row in rows if not row.part}
    # data 0–100; forward 130–400; loss 120–130 and 400–500; other 100–120 and 980–1000.
    assert whole == {
        "data": 100,
        "forward": 270,
        "loss": 110,
        "backward": 400,
        "optimizer": 80,
        "communication": 0,
        "other": 40,
    }
    parts = {part: round(row.seconds * 1e6) for (_, part), row in by_name(rows).items() if part}
    assert parts == {
        "reading, or waiting for workers": 40,
        "collation": 40,
        "sampling and counting": 20,
        "clipping and watchers": 30,
        "update": 50,
    }
    assert sum(row.share for row in rows if not row.part) == pytest.approx(1)


def test_two_steps_are_averaged():
    later = [{**event, "ts": event["ts"] + 5000} for event in STEP]
    rows = by_name(phase_rows(parse_events(STEP + later), "cpu", 0))
    assert rows["backward", ""].seconds == pytest.approx(400e-6)


def test_peak_memory_of_a_phase_counts_what_was_held_before_it():
    events = [*STEP, memory(50, 10), memory(200, 70), memory(450, 60), memory(600, 90), memory(700, 5)]
    rows = by_name(phase_rows(parse_events(events), "cpu", 1000))
    peaks = {phase: rows[phase, ""].peak_bytes for phase in ("data", "forward", "loss", "backward", "optimizer")}
    assert peaks == {"data": 1010, "forward": 1070, "loss": 1070, "backward": 1090, "optimizer": 1005}
    assert by_name(phase_rows(parse_events([*STEP, memory(50, 10)]), "cuda", 0))["data", ""].peak_bytes is None


def test_communication_is_what_no_computation_hides():
    # As gloo's own threads write it; c10d's operators are the calls that hand messages over.
    gloo = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "ts": 710, "dur": 190, "tid": 2}
    call = op("c10d::allreduce_", 700, 710)
    events = [*STEP, gloo, call, op("aten::mm", 650, 780, [[1, 1], [1, 1]], ["float"] * 2)]
    rows = by_name(phase_rows(parse_events(events), "cpu", 0))
    assert rows["communication", ""].seconds * 1e6 == pytest.approx(120)  # 780–900
    assert rows["backward", ""].seconds * 1e6 == pytest.approx(280)


def test_kernels_belong_to_the_phase_that_launched_them():
    events = [
        *STEP,
        *(launch(at, number) for number, at in enumerate((200, 450, 600, 610, 950))),
        kernel("gemm_forward", 300, 600, 0),
        kernel("cross_entropy", 600, 700, 1),
        kernel("gemm_backward", 700, 1000, 2),
        kernel("ncclDevKernel_AllReduce", 900, 1100, 3),
        kernel("adam", 1100, 1150, 4),
    ]
    trace = parse_events(events)
    rows = by_name(phase_rows(trace, "cuda", 0))
    device = {phase: round((rows[phase, ""].device_seconds or 0) * 1e6) for phase in PHASES}
    assert device == {
        "data": 0,
        "forward": 300,
        "loss": 100,
        "backward": 300,
        "optimizer": 50,
        "communication": 100,  # 1000–1100, what the backward's kernels do not hide
        "other": 0,
    }
    assert sum(row.share for row in rows.values() if not row.part) == pytest.approx(1)
    assert device_busy_share(trace) == pytest.approx(0.7)  # 300–1000 of 0–1000
    assert top_operators(trace, 1)[0].name in ("gemm_forward", "gemm_backward")


@given(st.lists(st.tuples(st.sampled_from(sorted(PARTS)), st.floats(0, 900), st.floats(0, 100)), max_size=12))
def test_whatever_is_in_it_a_step_is_shared_out_whole(ranges):
    at, events = 0.0, []
    for name, gap, length in ranges:
        if name == "step":
            continue
        events.append(span(name, at + gap, at + gap + length))
        at += gap + length
    rows = phase_rows(parse_events([span("step", 0, at + 1), *events]), "cpu", 0)
    assert sum(row.seconds for row in rows if not row.part) == pytest.approx((at + 1) / 1e6)
    for phase in PHASES:
        parts = [row.seconds for row in rows if row.phase == phase and row.part]
        assert not parts or sum(parts) == pytest.approx(next(row.seconds for row in rows if row.phase == phase))


def test_products_by_dtype_and_shape():
    float2, bf2 = ["float", "float"], ["c10::BFloat16", "c10::BFloat16"]
    attention = [[2, 4, 8, 16], [2, 4, 8, 16], [2, 4, 8, 16]]
    values = ["", "", "", "0.", "True", "", ""]
    ops = parse_events(
        [
            op("aten::linear", 0, 9, [[2, 3, 4], [5, 4]], float2),  # calls mm: not counted itself
            op("aten::mm", 1, 2, [[6, 4], [4, 5]], float2),
            op("aten::addmm", 2, 3, [[5], [6, 4], [4, 5]], ["float", *bf2]),
            op("aten::bmm", 3, 4, [[7, 6, 4], [7, 4, 5]], bf2),
            op("aten::_scaled_dot_product_flash_attention_for_cpu", 4, 5, attention, bf2 * 2, values),
        ]
    ).ops
    # 2·m·k·n each; addmm's dtype is its factors'. Attention: 2 products · 2 FLOPs · (2·4)·8·8·16, half of it causal.
    assert flops_by_dtype(ops) == {"float32": 240, "bfloat16": 240 + 7 * 240 + 2 * 8 * 8 * 8 * 16}


def test_attention_calls_with_a_mask_are_told_apart():
    q = [2, 4, 8, 16]
    calls = [
        op("aten::scaled_dot_product_attention", at, at + 1, [q, q, q, mask]) for at, mask in ((0, []), (2, [8, 8]))
    ]
    assert attention_calls(parse_events(calls).ops) == (2, 1)


def test_attention_that_autocast_calls_once_more_within_itself_counts_once():
    q, name = [2, 4, 8, 16], "aten::scaled_dot_product_attention"
    calls = [op(name, 0, 5, [q, q, q, []]), op(name, 2, 4, [q, q, q, []]), op(name, 2, 4, [q, q, q, []], thread=2)]
    assert attention_calls(parse_events(calls).ops) == (2, 0)


def test_dropout_and_top_operators():
    events = [
        span("step", 0, 100),
        op("aten::dropout", 10, 30),
        op("aten::native_dropout", 12, 28),
        op("aten::mm", 40, 90, [[1, 1], [1, 1]], ["float"] * 2),
    ]
    trace = parse_events(events)
    assert dropout_share(trace) == pytest.approx(0.2)
    first, second, third = top_operators(trace)
    assert (first.name, round(first.seconds * 1e6)) == ("aten::mm", 50)
    assert (second.name, round(second.seconds * 1e6)) == ("aten::native_dropout", 16)
    assert (third.name, round(third.seconds * 1e6)) == ("aten::dropout", 4)


def test_other_events_are_left_alone():
    odd = [{"ph": "M", "name": "process_name", "args": {"name": "python"}}, {"ph": "s", "cat": "fwdbwd", "name": "x"}]
    assert parse_events(odd) == Trace()
