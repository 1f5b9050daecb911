from __future__ import annotations

import dataclasses

import pytest
from peft import IA3Config, LoraConfig

from hf_recipes.core.errors import UserError
from hf_recipes.export.methods import REFUSED, UNDERSTOOD, UNDERSTOOD_IA3, refuse_unsupported

PLAIN = LoraConfig(target_modules=["q_proj"]).to_dict() | {"peft_type": "LORA"}


def test_every_setting_of_the_installed_peft_is_understood_or_refused():
    """A PEFT that brings a new setting fails here, until somebody has read what it does to a merge."""
    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    assert fields - UNDERSTOOD == set(REFUSED)
    assert {field.name for field in dataclasses.fields(IA3Config)} == UNDERSTOOD_IA3


def test_plain_lora_and_ia3_pass():
    refuse_unsupported(PLAIN, "adapter")
    refuse_unsupported(IA3Config(target_modules=["k_proj"], feedforward_modules=[]).to_dict(), "adapter")


def test_a_setting_of_lora_is_none_of_ia3():
    with pytest.raises(UserError, match="use_dora is set"):
        refuse_unsupported({"peft_type": "IA3", "use_dora": True}, "adapter")


@pytest.mark.parametrize("kind", ["BOTTLENECK", "HF_RECIPES_BOTTLENECK"])
def test_a_bottleneck_adapter_is_refused_with_what_to_do(kind):
    with pytest.raises(UserError, match="not linear, so it has nothing to merge: serve it beside its base"):
        refuse_unsupported({"peft_type": kind}, "adapter")


@pytest.mark.parametrize("setting", sorted(REFUSED))
def test_variants_that_are_not_plain_algebra_are_refused_by_name(setting):
    with pytest.raises(UserError, match=rf"adapter cannot be merged \({setting} is set\)"):
        refuse_unsupported({**PLAIN, setting: [1]}, "adapter")


def test_a_setting_of_a_later_peft_is_refused_rather_than_ignored():
    with pytest.raises(UserError, match="use_next_years_variant"):
        refuse_unsupported({**PLAIN, "use_next_years_variant": True}, "adapter")


@pytest.mark.parametrize("start", [True, False, None, "gaussian", "eva", "orthogonal", "mica"])
def test_initialisations_that_leave_the_base_pass(start):
    refuse_unsupported({**PLAIN, "init_lora_weights": start}, "adapter")


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "OLoRA", "loftq", "corda", "lora_ga"])
def test_initialisations_that_changed_the_base_are_refused_with_the_cure(start):
    with pytest.raises(UserError, match=rf"'{start}'.*make_plain_lora"):
        refuse_unsupported({**PLAIN, "init_lora_weights": start}, "adapter")


@pytest.mark.parametrize("kind", ["PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING", "LOHA", "ADALORA"])
def test_other_methods_are_refused_by_name(kind):
    with pytest.raises(UserError, match=f"is a {kind} adapter"):
        refuse_unsupported({**PLAIN, "peft_type": kind}, "adapter")
