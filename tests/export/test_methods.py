from __future__ import annotations

import dataclasses

import pytest
import torch
from algebra_helpers import edited_values
from export_helpers import peft_merge, save_adapter, save_base, tensors_of
from peft import IA3Config, LoraConfig
from peft.tuners.lora.config import MontecloraConfig, VeloraConfig

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.methods import (
    IN_MEMORY,
    IN_MEMORY_SETTINGS,
    REFUSED,
    UNDERSTOOD,
    UNDERSTOOD_IA3,
    refuse_unsupported,
    route,
)

PLAIN = LoraConfig(target_modules=["q_proj"]).to_dict() | {"peft_type": "LORA"}


def test_every_setting_of_the_installed_peft_is_understood_or_refused():
    """A PEFT that brings a new setting fails here, until somebody has read what it does to a merge."""
    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    assert fields - UNDERSTOOD == {*REFUSED, *IN_MEMORY_SETTINGS}
    assert {field.name for field in dataclasses.fields(IA3Config)} == UNDERSTOOD_IA3


def test_plain_lora_and_ia3_pass():
    assert route(PLAIN, "adapter") == "stream"
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


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "lora_ga"])
def test_initialisations_that_changed_the_base_are_refused_with_the_cure(start):
    with pytest.raises(UserError, match=rf"'{start}'.*make_plain_lora"):
        refuse_unsupported({**PLAIN, "init_lora_weights": start}, "adapter")


def test_loftq_fits_only_the_values_it_started_from():
    with pytest.raises(UserError, match=r"'loftq', so it fits only the quantised values .* --base"):
        route({**PLAIN, "init_lora_weights": "loftq"}, "adapter")


@pytest.mark.parametrize("kind", ["PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING", "CARTRIDGE"])
def test_methods_that_change_no_weight_have_nothing_to_merge(kind):
    with pytest.raises(UserError, match=f"is a {kind} adapter: it changes no weight, so serve it beside its base"):
        route({**PLAIN, "peft_type": kind}, "adapter")


@pytest.mark.parametrize("kind", ["XLORA", "POLY", "NEXT_YEARS"])
def test_methods_that_cannot_be_merged_or_are_not_known_are_refused_by_name(kind):
    with pytest.raises(UserError, match=f"is a {kind} adapter, which is not merged here"):
        route({"peft_type": kind}, "adapter")


@pytest.mark.parametrize(
    "config",
    [*({"peft_type": kind} for kind in IN_MEMORY), *({**PLAIN, key: [1]} for key in IN_MEMORY_SETTINGS)],
    ids=str,
)
def test_what_is_no_plain_algebra_is_left_to_peft_in_memory(config):
    assert route(config, "adapter") == "in_memory"
    with pytest.raises(UserError, match="can only be merged alone and by peft, in memory"):
        refuse_unsupported(config, "adapter")


@pytest.mark.parametrize(
    ("settings", "training_only"),
    [
        ({"monteclora_config": MontecloraConfig(num_samples=2)}, 4),
        ({"velora_config": VeloraConfig(num_groups=2)}, 1),
        ({"init_lora_weights": "mica"}, 0),
        ({"init_lora_weights": "orthogonal"}, 0),
    ],
    ids=["monteclora", "velora", "mica", "orthogonal"],
)
def test_lora_that_differs_in_training_only_is_merged_as_peft_merges_it(settings, training_only, tmp_path):
    base = save_base(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["q_proj"], **settings)
    golden = peft_merge(base, adapter)
    values = edited_values(adapter, base, torch.float32)
    assert len(values) == 2 and all(torch.equal(value, golden[name]) for name, value in values.items())
    layers = 2
    assert len(tensors_of(adapter)) - len(read_adapter(adapter).entries) == training_only * layers
