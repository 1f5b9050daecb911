"""LoRA on the fused experts of a layer, written back as the experts that the checkpoint holds one by one."""

from __future__ import annotations

import pytest
import torch
from export_helpers import change_json, change_tensors, live_logits, merged_logits, read, save_base, tensors_of
from mixtures import EXPERTS, FAMILIES, make_mixture, save_lora, save_peft_merge, train_at_random
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.experts import wrapped_parameters
from hf_recipes.export.merge import merge_adapter
from hf_recipes.models.methods.experts import lora_targets
from hf_recipes.models.methods.lora import LoraSettings, attach_lora

ATTENTION = {"target_modules": ["q_proj", "v_proj"]}
ADAPTERS = {
    "both parameters of the experts": {**ATTENTION, "target_parameters": EXPERTS},
    "one of them": {"target_modules": [], "target_parameters": EXPERTS[1:]},
    "ranks and factors of their own": {
        **ATTENTION,
        "target_parameters": EXPERTS,
        "use_rslora": True,
        "rank_pattern": {EXPERTS[0]: 3, "q_proj": 5},
        "alpha_pattern": {EXPERTS[1]: 5},
    },
    "the rank of all experts together is that of a module": {
        **ATTENTION,
        "r": 8,
        "target_parameters": EXPERTS,
        "rank_pattern": {"gate_up_proj": 2},
    },
}


def assert_same_files(output, golden):
    """The same names, shapes and bits."""
    written, wanted = tensors_of(output), tensors_of(golden)
    assert set(written) == set(wanted)
    assert [name for name in wanted if not torch.equal(written[name], wanted[name])] == []


CASES = [(family, "both parameters of the experts") for family in FAMILIES] + [("Mixtral", kind) for kind in ADAPTERS][
    1:
]


@pytest.mark.filterwarnings("ignore:The following")  # of patterns that PEFT does use
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_experts_are_merged_to_pefts_bits_under_the_bases_names(family, kind, tmp_path):
    base = save_base(tmp_path / "base", make_mixture(family))
    adapter = save_lora(tmp_path / "adapter", base, **ADAPTERS[kind])
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    assert_same_files(tmp_path / "out", save_peft_merge(tmp_path / "golden", base, adapter))
    assert set(tensors_of(tmp_path / "out")) == set(tensors_of(base))
    assert report.tensors_changed == report.tensors_merged > 0


def test_the_merged_mixture_computes_what_the_live_adapter_does(tmp_path):
    base = save_base(tmp_path / "base", make_mixture())
    adapter = save_lora(tmp_path / "adapter", base, **ADAPTERS["both parameters of the experts"])
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    live = live_logits(base, adapter)
    assert (live - merged_logits(base)).abs().max() > 0.1
    torch.testing.assert_close(merged_logits(tmp_path / "out"), live, atol=1e-5, rtol=0)


def test_over_a_bf16_base_there_is_one_rounding_where_peft_has_two(tmp_path):
    base = save_base(tmp_path / "base", make_mixture(), dtype=torch.bfloat16)
    adapter = save_lora(tmp_path / "adapter", base, **ADAPTERS["both parameters of the experts"])
    merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    merge_adapter(adapter, output=tmp_path / "exact", dtype="fp32")
    written, exact = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "exact")
    assert all(torch.equal(tensor, exact[name].bfloat16()) for name, tensor in written.items())
    peft = tensors_of(save_peft_merge(tmp_path / "golden", base, adapter))
    ours, theirs = (
        sum(float((each[name].float() - exact[name]).square().sum()) for name in exact) for each in (written, peft)
    )
    assert ours < theirs


def test_a_single_expert_and_a_sharded_base(tmp_path):
    base = tmp_path / "base"
    make_mixture(num_local_experts=1, num_experts_per_tok=1).save_pretrained(base, max_shard_size="30KB")
    assert len(list(base.glob("*.safetensors"))) > 2
    adapter = save_lora(tmp_path / "adapter", base, **ADAPTERS["both parameters of the experts"])
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    assert (
        read(tmp_path / "out/model.safetensors.index.json")["weight_map"]
        == (read(base / "model.safetensors.index.json")["weight_map"])
    )
    torch.testing.assert_close(merged_logits(tmp_path / "out"), live_logits(base, adapter), atol=1e-5, rtol=0)


def test_what_a_recipe_puts_on_a_mixture_is_merged(tmp_path):
    """``lora_target_modules: all-linear``, ``lora_target_parameters: all-experts``, ``train_router: true``."""
    base = save_base(tmp_path / "base", make_mixture())
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    targets = lora_targets(model, "all-linear", ["all-experts"], train_router=True)
    settings = LoraSettings(
        r=2,
        dropout=0.0,
        target_modules=targets.modules,
        target_parameters=targets.parameters,
        modules_to_save=targets.modules_to_save,
    )
    adapter = train_at_random(attach_lora(model, settings), tmp_path / "adapter")
    report = merge_adapter(adapter, base=base, output=tmp_path / "out", dtype="fp32")
    assert_same_files(tmp_path / "out", save_peft_merge(tmp_path / "golden", base, adapter))
    assert report.tensors_changed == 2 * (4 + 1 + 3 * 4)  # attention, router, three matrices of each expert


def test_each_pair_is_given_to_the_parameter_that_peft_wrapped():
    """For any order of the targets: the parameters of the module count, not the names in the config."""
    wrapped = get_peft_model(
        make_mixture("GptOss"),
        LoraConfig(r=2, target_modules=[], target_parameters=["down_proj", "gate_up_proj_bias", "gate_up_proj"]),
    )
    found = wrapped_parameters(make_mixture("GptOss"), ["gate_up_proj_bias", "down_proj", "gate_up_proj"])
    inside = wrapped.base_model.model
    names = {name for name, module in inside.named_modules() if type(module).__name__ == "ParamWrapper"}
    assert set(found) == names
    for name, parameter in found.items():
        assert parameter == f"{name.replace('.base_layer', '')}.{inside.get_submodule(name).parameter_name}"


@pytest.fixture
def mixture(tmp_path):
    base = save_base(tmp_path / "base", make_mixture())
    return base, save_lora(tmp_path / "adapter", base, **ADAPTERS["both parameters of the experts"])


def refused(adapter, tmp_path, match, error=UserError, **arguments):
    with pytest.raises(error, match=match) as caught:
        merge_adapter(adapter, output=tmp_path / "out", dtype="fp32", **arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_another_rank_than_configured_is_refused(mixture, tmp_path):
    change_json(mixture[1] / "adapter_config.json", r=4, rank_pattern={"q_proj": 2, "v_proj": 2})
    refused(mixture[1], tmp_path, "not of rank 4 for each of 4 experts.*experts.gate_up_proj")


def test_another_number_of_experts_is_refused(mixture, tmp_path):
    other = save_base(tmp_path / "other", make_mixture(num_local_experts=2))
    refused(mixture[1], tmp_path, "not of rank 2 for each of 2 experts", base=other)


def test_another_width_is_refused(mixture, tmp_path):
    other = save_base(tmp_path / "other", make_mixture(intermediate_size=40))
    refused(mixture[1], tmp_path, r"shape \[4, 80, 32\], but the adapter's .* makes \[96, 32\]", base=other)


def test_parameters_that_the_base_has_not_are_refused(mixture, tmp_path):
    change_json(mixture[1] / "adapter_config.json", target_parameters=["experts.other"])
    refused(mixture[1], tmp_path, "not of rank|no counterpart in the base")


def test_half_a_pair_is_refused(mixture, tmp_path):
    name = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight"
    change_tensors(mixture[1], lambda tensors: tensors.pop(name))
    refused(mixture[1], tmp_path, "Half an adapter")


def test_untrained_experts_change_nothing(tmp_path):
    base = save_base(tmp_path / "base", make_mixture())
    model = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", target_modules=[], target_parameters=EXPERTS)
    ).save_pretrained(tmp_path / "adapter")
    refused(tmp_path / "adapter", tmp_path, "changes nothing", CheckFailed)
