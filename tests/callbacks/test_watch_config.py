"""Thresholds as a recipe writes them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from hf_recipes.callbacks.build import build_watchers
from hf_recipes.callbacks.config import WatchConfig
from hf_recipes.core.errors import UserError


def test_defaults_and_every_field_has_help():
    assert WatchConfig.from_dict(None) == WatchConfig.from_dict({}) == WatchConfig()
    assert all(spec.metadata["help"].endswith(".") for spec in fields(WatchConfig))


def test_importing_the_thresholds_loads_no_torch():
    code = "import sys, hf_recipes.callbacks.config; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"spike_sigma": 6}, {"spike_sigma": 6.0}),
        ({"spike_sigma": "6.5"}, {"spike_sigma": 6.5}),
        ({"overfit_min_delta": "1e-3"}, {"overfit_min_delta": 1e-3}),  # YAML leaves 1e-3 text
        ({"non_finite": False}, {"non_finite": "off"}),  # YAML reads off as False
        ({"non_finite": "skip"}, {"non_finite": "skip"}),
        ({"overfit_patience": "off"}, {"overfit_patience": 0}),
        ({"overfit_patience": False}, {"overfit_patience": 0}),
        ({"grad_norm": "off", "overfit_stop": "on"}, {"grad_norm": False, "overfit_stop": True}),
        ({"grad_window": "64"}, {"grad_window": 64}),
    ],
)
def test_values_as_people_write_them(given, read):
    config = WatchConfig.from_dict(given)
    assert {key: getattr(config, key) for key in read} == read
    assert config == WatchConfig(**read)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"spike_sigm": 8}, "watch.spike_sigm is not a threshold (did you mean 'spike_sigma'?)"),
        ({"zzz": 8}, "watch.zzz is not a threshold: known are non_finite,"),
        ({"non_finite": "halt"}, "watch.non_finite must be stop, skip, restore or off, not 'halt'"),
        ({"spike_sigma": "eight"}, "watch.spike_sigma must be a number, not 'eight'"),
        ({"spike_sigma": True}, "watch.spike_sigma must be a number, not True"),
        ({"spike_sigma": float("nan")}, "watch.spike_sigma must be a number"),
        ({"spike_sigma": 0}, "watch.spike_sigma must be at least 1.0, not 0"),
        ({"overfit_patience": -1}, "watch.overfit_patience must be at least 0, not -1"),
        ({"grad_window": 20.5}, "watch.grad_window must be a whole number, not 20.5"),
        ({"grad_norm": "maybe"}, "watch.grad_norm must be on or off, not 'maybe'"),
        (["spike_sigma"], "watch: must hold keys and values"),
    ],
)
def test_a_wrong_key_or_value_is_one_sentence(given, message):
    with pytest.raises(UserError) as error:
        WatchConfig.from_dict(given)
    assert str(error.value).startswith(message)


def test_watchers_follow_the_thresholds():
    names = [type(each).__name__ for each in build_watchers()]
    assert names == [
        "NonFiniteGuard",
        "TrainableGuard",
        "GradNormWatch",
        "LossWatch",
        "ScheduleWatch",
        "ThroughputWatch",
        "MemoryWatch",
        "RankWatch",
        "OverfitWatch",
    ]
    more = ("loss", "schedule", "throughput", "memory", "ranks")
    off = {"non_finite": False, "trainable": False, "grad_norm": False, "overfit_patience": 0}
    assert build_watchers({**off, **dict.fromkeys(more, False)}) == []
    guard, _, norm, overfit = build_watchers(
        {
            "non_finite": "skip",
            "max_consecutive_skips": 3,
            "spike_sigma": 5,
            "overfit_patience": 2,
            "overfit_stop": True,
            **dict.fromkeys(more, "off"),
        }
    )
    assert (guard.policy, guard.max_consecutive_skips, norm.sigma) == ("skip", 3, 5.0)
    assert (overfit.patience, overfit.stop) == (2, True)


def test_the_page_on_watching_tells_every_key_with_its_default():
    page = (Path(__file__).resolve().parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    for spec in fields(WatchConfig):
        default = {True: "on", False: "off"}.get(spec.default) if isinstance(spec.default, bool) else None
        default = default or (f"`{spec.default}`" if isinstance(spec.default, str) else f"{spec.default:g}")
        assert told[spec.name] == f"{default} | {spec.metadata['help']}"
