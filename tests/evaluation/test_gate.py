from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.gate import check_gate, check_names, parse_gate

FIGURES = {
    "format": {"base": 0.2, "tuned": 0.96},
    "exact": {"base": 0.5, "tuned": 0.49, "merged-bf16": 0.51},
    "forgetting": {"tuned": 0.04},
    "general_nats": {"base": 2.0, "tuned": 2.04},
    "arc_easy.acc": {"base": 0.5, "tuned": None},
}
SIDES = ["base", "tuned", "merged-bf16"]


@given(
    st.sampled_from(["format", "exact", "arc_easy.acc"]),
    st.sampled_from(["<", "<=", ">", ">="]),
    st.floats(-5, 5, allow_nan=False).map(lambda value: round(value, 4)),
    st.sampled_from([None, "base", "merged-bf16"]),
    st.sampled_from([None, "tuned", "merged-bf16"]),
)
def test_what_is_written_is_read_back(name, sign, offset, side, judged):
    limit = f"{offset:f}" if side is None else f"{side}{offset:+f}"
    text = f"{f'{judged}:' if judged else ''}{name}{sign}{limit}"
    (condition,) = parse_gate(f" {text} ")
    assert (condition.judged, condition.name, condition.sign, condition.side) == (judged, name, sign, side)
    assert condition.offset == pytest.approx(offset)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused_in_one_sentence(text):
    try:
        conditions = parse_gate(text)
    except UserError as error:
        assert "\n" not in str(error) or "\n" in text
    else:
        assert conditions


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("format>0.95", True),
        ("format>95%", True),
        ("format > 97 %", False),
        ("format<=.96", True),
        ("exact>=base", False),
        ("exact>=base-0.02", True),
        ("exact>=base-2%", True),
        ("merged-bf16:exact>=base", True),
        ("exact>=merged-bf16-0.02", True),
        ("merged-bf16:exact>=merged-bf16", True),
        ("forgetting<0.1", True),
        ("general_loss<0.1", True),
        ("general_loss<0.04", False),
        ("general_nats<2.1", True),
        ("base:general_nats<1.9", False),
        ("arc_easy.acc>0.1", False),
    ],
)
def test_conditions(condition, holds):
    conditions = parse_gate(condition)
    check_names(conditions, FIGURES, SIDES)
    (outcome,) = check_gate(conditions, FIGURES, "tuned")
    assert outcome.holds is holds
    assert outcome.sentence.startswith("met: " if holds else "missed: ")


def test_a_models_name_may_end_as_an_offset_does():
    figures = {"exact": {"run": 0.5, "run-2": 0.9, "tuned": 0.6}}
    for text, holds, told in (
        ("exact>run-2", False, "wanted > 0.9 (run-2)"),
        ("exact>run-0.2", True, "wanted > 0.3 (run - 0.2)"),
        ("exact>run-2-0.4", True, "wanted > 0.5 (run-2 - 0.4)"),
    ):
        check_names(parse_gate(text), figures, ["run", "run-2", "tuned"])
        (outcome,) = check_gate(parse_gate(text), figures, "tuned")
        assert (outcome.holds, outcome.sentence.split(", ")[1]) == (holds, told)


def test_a_sentence_tells_figure_model_and_limit():
    outcomes = check_gate(parse_gate("exact>=base-0.02,general_loss<0.01,arc_easy.acc>0.1"), FIGURES, "tuned")
    assert [outcome.sentence for outcome in outcomes] == [
        "met: exact of tuned is 0.49, wanted >= 0.48 (base - 0.02)",
        "missed: general_loss (the rise over base) of tuned is 0.04, wanted < 0.01",
        "missed: arc_easy.acc of tuned has no value, wanted > 0.1",
    ]


def test_not_a_number_is_below_and_above_nothing():
    figures = {"general_nats": {"tuned": float("nan")}}
    for text in ("general_nats<100", "general_nats>0"):
        assert check_gate(parse_gate(text), figures, "tuned")[0].holds is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fromat>0.9", "names no figure of this evaluation (did you mean 'format'?)"),
        ("tunde:format>0.9", "names no model (did you mean 'tuned'?)"),
        ("format>bse", "names no model (did you mean 'base'?)"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(text, message):
    with pytest.raises(UserError) as error:
        check_names(parse_gate(text), FIGURES, SIDES)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["format", "format=0.9", "format>", ">0.9", "format>0.9>1", "format>>0.9", ",", ""])
def test_another_form_is_refused(text):
    with pytest.raises(UserError, match="gate"):
        parse_gate(text)


def test_a_limit_for_the_loss_itself_is_not_taken_for_one_of_its_rise():
    with pytest.raises(UserError, match=r"for the loss itself write general_nats"):
        parse_gate("general_loss<2.5")
