"""Command-line keys with several values → axes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.key_table import load_key_table
from hf_recipes.sweep.axes import Span, read_axes, split_outside

TABLE = load_key_table()


def axes_of(*arguments, known=()):
    axes, fixed = read_axes(arguments, TABLE, known)
    return {axis.key: axis.values or str(axis.span) for axis in axes}, fixed


def test_values_stand_apart_by_commas_and_short_names_are_known():
    axes, fixed = axes_of("--lr", "1e-5,2e-5", "--batch", "16,32", "--method", "full,lora", "--rank", "8")
    assert axes == {"learning_rate": (1e-5, 2e-5), "batch": (16, 32), "method": ("full", "lora")}
    assert fixed == {"lora_r": 8}


def test_a_key_of_the_sweep_that_is_gone_on_with_stays_an_axis_with_one_value():
    assert axes_of("--lr", "1e-4", known=["learning_rate"]) == ({"learning_rate": (1e-4,)}, {})


@pytest.mark.parametrize(
    "text", ["[q_proj,v_proj];[all-linear]", "[[q_proj, v_proj], [all-linear]]", "[q_proj,v_proj];all-linear"]
)
def test_lists_stand_apart_by_semicolons_or_in_a_list(text):
    assert axes_of("--lora_target_modules", text)[0] == {"lora_target_modules": (["q_proj", "v_proj"], ["all-linear"])}


def test_one_list_and_one_mapping_are_no_axes():
    _, fixed = axes_of("--lora_target_modules", "[q_proj,v_proj]", "--watch", "{samples: 3, loss: off}")
    assert fixed == {"lora_target_modules": ["q_proj", "v_proj"], "watch": {"samples": 3, "loss": "off"}}


def test_nested_keys_are_dotted():
    assert axes_of("--watch.spike_sigma", "4,8")[0] == {"watch.spike_sigma": (4, 8)}


def test_a_range_is_drawn_from_or_stepped_through():
    assert axes_of("--lr", "1e-6..1e-3")[0] == {"learning_rate": "1e-06..0.001"}
    assert axes_of("--lr", "1e-6..1e-3:4")[0] == {"learning_rate": (1e-6, 1e-5, 1e-4, 1e-3)}
    assert axes_of("--lora_dropout", "0..0.2:3")[0] == {"lora_dropout": (0.0, 0.1, 0.2)}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--lr", "1e-5,1e-5"], "1e-05 is given twice"),
        (["--lr", "0.00001,1e-5"], "given twice"),
        (["--lr", "1e-5,,2e-5"], "a value is empty"),
        (["--lr"], "no value is given"),
        (["--lr="], "no value is given"),
        (["--lora_target_modules", "[]"], "no value is given"),
        (["--lr", "1e-5,2e-5", "--learning_rate", "1e-4"], "are the same key"),
        (["--lrr", "1,2"], "did you mean 'lr'"),
        (["--lora_rr", "1,2"], "did you mean 'lora_r'"),
        (["--method", "full,lroa"], "did you mean 'lora'"),
        (["--lora_r", "8,many"], "give a whole number"),
        (["--batch", "16,0"], "no number of rows"),
        (["--precision", "fp16,fp8"], "fp32, bf16, fp16"),
        (["--precision", "fp16,fp32", "--dtype", "fp16"], "is decided by --precision"),
        (["--batch", "8,16", "--gradient_accumulation_steps", "2"], "is decided by --batch"),
        (["--lora_target_modules", "q_proj,v_proj"], "write each in brackets"),
        (["--watch.samples", "1,2", "--watch", "{loss: off}"], "is a part of --watch"),
        (["--output_dir", "a,b"], "is the same for all trials"),
        (["--lr", "1e-3..1e-5"], "is empty"),
        (["--lr", "0..1"], "begin above 0"),
        (["--lora_r", "8..16.5"], "whole numbers"),
        (["--lr", "1e-5..1e-3:1"], "give 2 or more"),
        (["--method", "1..2"], "this key takes none"),
        (["--lora_target_modules", "[q_proj;[v_proj]"], "is not closed"),
        (["--lr", "'1e-5,2e-5"], "is not closed"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, sentence):
    with pytest.raises(UserError) as error:
        read_axes(arguments, TABLE)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(1e-9, 1.0), min_size=2, max_size=6, unique=True))
def test_numbers_read_back_as_they_were_written(values):
    axes, _ = read_axes(["--lr", ",".join(map(repr, values))], TABLE)
    assert list(axes[0].values) == values


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text("abc", min_size=1), min_size=1, max_size=4), st.sampled_from(",;"))
def test_what_stands_in_brackets_is_not_split(words, separator):
    whole = json.dumps(words)
    assert split_outside(separator.join([whole, whole]), separator) == [whole, whole]


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-8, 0.5), st.floats(1.01, 1e6), st.floats(0, 1), st.booleans(), st.booleans())
def test_a_span_gives_values_within_its_ends(low, ratio, share, log, whole):
    ends = (max(1, round(low)), max(2, round(low * ratio) + 1)) if whole else (low, low * ratio)
    span = Span(*map(float, ends), log=log, whole=whole)
    assert span.low <= span.at(share) <= span.high
    assert (span.at(0), span.at(1)) == pytest.approx(ends, rel=5e-3)
