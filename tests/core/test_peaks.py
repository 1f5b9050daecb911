"""Peaks: dense figures by device name, and the measurement where there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.peaks import find_peak, measured_peak, published_peak


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),  # dense: 1,979 is with sparsity
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H200", "float16", 989.4),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("NVIDIA A10", "bfloat16", 125),
        ("NVIDIA A10G", "bfloat16", 70),
        ("Tesla T4", "float16", 65),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
    ],
)
def test_dense_figures(name, dtype, tflops):
    assert published_peak(name, dtype).flops == tflops * 1e12


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("Tesla T4", "bfloat16"), ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16"), ("Radeon", "float16")],
)
def test_what_is_not_known_is_not_guessed(name, dtype):
    assert published_peak(name, dtype) is None


def test_tf32_when_it_is_on():
    assert published_peak("NVIDIA A100-SXM4-40GB", "float32", tf32=True).flops == 156e12


@given(st.floats(1e8, 1e15))
def test_measuring_finds_the_rate_of_a_machine_that_has_one(rate):
    assert measured_peak(lambda size: 2.0 * size**3 / rate, "float32", "here").flops == pytest.approx(rate)


def test_disturbed_measurements_do_not_count():
    delays = iter([0.01, 0.0, 0.02] * 1000)
    peak = measured_peak(lambda size: 2.0 * size**3 / 1e11 + next(delays), "float32", "here")
    assert peak.flops == pytest.approx(1e11)


def test_a_real_measurement():
    peak = find_peak("cpu", "float32")
    assert peak.flops > 1e8
    assert "measured here" in peak.source and "threads" in peak.source
