"""Several adapters read as one: weighted sums, the other rules, un-merging, and what cannot be put together."""

from __future__ import annotations

import shutil

import pytest
import torch
from algebra_helpers import plan_of, values_of
from export_helpers import change_json, change_tensors, make_gpt2, save_adapter, save_base, save_ia3, tensors_of
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.combination import Combination
from hf_recipes.export.combine import read_adapters

FP32, BF16 = torch.float32, torch.bfloat16
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("combine") / "base", attention_bias=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory, base):
    """Two plain adapters of other ranks, scales and modules, with biases of LoRA where both have a module."""
    place = tmp_path_factory.mktemp("adapters")
    one = save_adapter(place / "one", base, target_modules=["q_proj", "up_proj"], rank_pattern={"up_proj": 2})
    other = save_adapter(
        place / "other", base, seed=2, r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "embed_tokens"]
    )
    return [one, other]


def delta_of(adapter, module, scale):
    parts = tensors_of(adapter)
    a, b = (parts[f"base_model.model.{module}.lora_{half}.weight"] for half in "AB")
    return scale * (b @ a)


def peft_combined(base, adapters, weights, method):
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapters[0], adapter_name="0")
    for number, adapter in enumerate(adapters[1:], 1):
        model.load_adapter(adapter, adapter_name=str(number))
    names = [str(number) for number in range(len(adapters))]
    model.add_weighted_adapter(names, weights, "sum", combination_type=method)
    model.set_adapter("sum")
    return model.merge_and_unload().state_dict()


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.7, -1.5)])
@pytest.mark.parametrize("make", [None, make_gpt2], ids=["llama", "gpt2"])
def test_linear_is_pefts_cat(make, weights, tmp_path, base, pair):
    adapters = pair
    if make:
        base = save_base(tmp_path / "base", make())
        layers = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}
        adapters = [save_adapter(tmp_path / str(n), base, seed=n, r=n, **layers) for n in (1, 3)]
    golden = peft_combined(base, adapters, list(weights), "cat")
    values = values_of(plan_of(read_adapters(adapters, Combination(weights=weights)), base, FP32))
    for name, value in values.items():
        torch.testing.assert_close(value, golden[name], rtol=0, atol=1e-6)


def test_linear_is_the_weighted_sum_of_updates_and_pefts_linear_is_not(base, pair, tmp_path):
    other = save_adapter(tmp_path / "other", base, seed=3, target_modules=["q_proj", "up_proj"])
    one, weights = shutil.copytree(pair[0], tmp_path / "one"), (0.5, 2.0)
    values = values_of(plan_of(read_adapters([one, other], Combination(weights=weights)), base, FP32))
    # alpha 8 / rank 4
    exact = tensors_of(base)[f"{Q}.weight"] + 0.5 * delta_of(one, Q, 2) + 2 * delta_of(other, Q, 2)
    torch.testing.assert_close(values[f"{Q}.weight"], exact, rtol=0, atol=1e-6)
    change_json(one / "adapter_config.json", rank_pattern={})  # PEFT's linear wants one rank
    change_tensors(one, lambda tensors: [tensors.pop(name) for name in list(tensors) if "up_proj" in name])
    change_json(one / "adapter_config.json", target_modules=["q_proj"])
    change_json(other / "adapter_config.json", target_modules=["q_proj"])
    golden = peft_combined(base, [one, other], list(weights), "linear")
    assert (golden[f"{Q}.weight"] - exact).abs().max() > 1e-3


def test_all_tensors_of_all_adapters_are_accounted_for(base, pair):
    adapter = read_adapters(pair)
    plan = plan_of(adapter, base, FP32)
    assert len(adapter.entries) == sum(len(tensors_of(one)) for one in pair)
    assert sum(len(output.edit.names) for output in plan.edited) == len(adapter.entries)
    assert adapter.directory == pair[0]


def test_one_adapter_with_the_weight_one_is_that_adapter(pair):
    assert read_adapters(pair[:1]) == read_adapter(pair[0])


def test_biases_of_lora_are_summed(base, tmp_path):
    settings = {"target_modules": ["q_proj"], "lora_bias": True}
    adapters = [save_adapter(tmp_path / str(n), base, seed=n, **settings) for n in (1, 2)]
    weights = (2.0, -0.5)
    values = values_of(plan_of(read_adapters(adapters, Combination(weights=weights)), base, FP32))
    biases = [tensors_of(adapter)[f"base_model.model.{Q}.lora_B.bias"] for adapter in adapters]
    exact = tensors_of(base)[f"{Q}.bias"] + sum(weight * 2 * bias for weight, bias in zip(weights, biases, strict=True))
    torch.testing.assert_close(values[f"{Q}.bias"], exact, rtol=0, atol=1e-6)
    ties = Combination("ties", weights, density=0.5)
    assert not torch.equal(values_of(plan_of(read_adapters(adapters, ties), base, FP32))[f"{Q}.bias"], exact)


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj", "embed_tokens", "up_proj"]},
        {"target_modules": ["q_proj"], "use_rslora": True, "lora_bias": True},
    ],
    ids=["plain", "rslora, bias"],
)
def test_the_weight_minus_one_takes_a_merge_back(settings, base, tmp_path):
    """Both sums are rounded to fp32, each by at most half a unit in the last place of what it gives: W + ΔW and W."""
    adapter = save_adapter(tmp_path / "adapter", base, **settings)
    before, merged = tensors_of(base), values_of(plan_of(adapter, base, FP32))
    (tmp_path / "merged").mkdir()
    save_file({name: value.contiguous() for name, value in merged.items()}, tmp_path / "merged" / "model.safetensors")
    (tmp_path / "merged" / "config.json").write_text((base / "config.json").read_text())
    undone = read_adapters([adapter], Combination(weights=(-1.0,)))
    back = values_of(plan_of(undone, tmp_path / "merged", FP32))
    changed = 0
    for name, value in back.items():
        bound = 2**-24 * (merged[name].abs() + value.abs())
        assert bool(((value - before[name]).abs() <= bound).all()), name
        changed += not torch.equal(merged[name], before[name])
    assert changed == len(plan_of(adapter, base, FP32).edited)


RULES = {
    "ties": Combination("ties", (1.0, 0.6), 0.4),
    "ties by count": Combination("ties", (1.0, 0.6), 0.4, "frequency"),
    "dare_linear": Combination("dare_linear", (1.0, -1.0), 0.5, seed=4),
    "dare_ties": Combination("dare_ties", (1.0, 0.6), 0.5),
    "magnitude_prune": Combination("magnitude_prune", (0.5, 0.5), 0.3),
}


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_other_rules_work_on_whole_updates(rule, dtype, base, pair):
    from peft.utils import merge_utils

    adapter = read_adapters(pair, rule)
    plan = plan_of(adapter, base, dtype)
    values = values_of(plan)  # holds each against the proof's own route
    updates = [delta_of(pair[0], Q, 2), delta_of(pair[1], Q, 5 / 3**0.5)]
    settings = [torch.tensor(rule.weights), rule.density]
    if "ties" in rule.method:
        settings.append(rule.majority_sign_method)
    torch.manual_seed(adapter.edits[f"{Q}.weight"].combined.seed)
    change = getattr(merge_utils, rule.method)(updates, *settings)
    exact = (tensors_of(base)[f"{Q}.weight"] + change).to(dtype)
    torch.testing.assert_close(values[f"{Q}.weight"], exact, rtol=0, atol=1e-6 if dtype == FP32 else 1e-3)
    embedding = {output.spec.name: output for output in plan.edited}["model.embed_tokens.weight"]
    assert embedding.transposed and len(embedding.edit.combined.updates) == 1  # one update is pruned too


def test_adapters_that_tie_their_weights_still_do_when_summed(tmp_path):
    base = save_base(tmp_path / "base", tied=True)
    settings = {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}
    adapters = [save_adapter(tmp_path / str(n), base, seed=n, **settings) for n in (1, 2)]
    assert not plan_of(read_adapters(adapters), base, FP32).untied


def test_what_is_no_sum_passes_where_only_one_adapter_has_it(base, pair, tmp_path):
    dora = save_adapter(tmp_path / "dora", base, target_modules=["v_proj"], use_dora=True, modules_to_save=["lm_head"])
    adapter = read_adapters([pair[0], dora], Combination(weights=(0.5, 1.0)))
    values, alone = (values_of(plan_of(one, base, FP32)) for one in (adapter, dora))
    for name in ("model.layers.0.self_attn.v_proj.weight", "lm_head.weight"):
        assert torch.equal(values[name], alone[name])


NO_SUMS = {
    "DoRA": {"target_modules": ["q_proj"], "use_dora": True},
    "trained in full": {"target_modules": ["v_proj"], "modules_to_save": ["q_proj"]},
    "trained token rows": {"target_modules": ["v_proj"], "trainable_token_indices": {"embed_tokens": [3]}},
}


@pytest.mark.parametrize("kind", NO_SUMS)
def test_a_weight_on_what_is_no_sum_is_refused(kind, base, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", base, **NO_SUMS[kind])
    with pytest.raises(UserError, match=rf"is {kind}, which is no sum, so a weight of 0\.5 has no meaning"):
        read_adapters([adapter], Combination(weights=(0.5,)))


@pytest.mark.parametrize("kind", [*NO_SUMS, r"a vector of \(IA\)³"])
def test_two_changes_of_one_parameter_that_are_no_sums_are_refused(kind, base, pair, tmp_path):
    made = save_adapter(tmp_path / "a", base, **NO_SUMS[kind]) if kind in NO_SUMS else None
    made = made or save_ia3(tmp_path / "a", base, target_modules=["q_proj"], feedforward_modules=[])
    with pytest.raises(UserError, match=f"both change '.*', one of them by {kind}, which cannot be added"):
        read_adapters([made, pair[1]])


def test_a_bias_that_a_vector_scales_is_a_clash_though_ia3_does_not_name_it(base, tmp_path):
    scaled = save_ia3(tmp_path / "ia3", base, target_modules=["q_proj"], feedforward_modules=[])
    biases = save_adapter(tmp_path / "biases", base, target_modules=["up_proj"], bias="all")
    with pytest.raises(UserError, match=r"both change 'model\.layers\.0\.self_attn\.q_proj\.bias'"):
        read_adapters([scaled, biases])


def test_adapters_of_different_bases_are_refused_unless_the_base_is_given(base, pair, tmp_path):
    moved = save_adapter(tmp_path / "moved", base, target_modules=["q_proj"])
    change_json(moved / "adapter_config.json", base_model_name_or_path="some/other")
    with pytest.raises(UserError, match=r"different base_model_name_or_path .*'some/other'\): name the one .* --base"):
        read_adapters([pair[0], moved])
    read_adapters([pair[0], moved], base_given=True)
    change_json(moved / "adapter_config.json", task_type="SEQ_CLS")
    with pytest.raises(UserError, match="different task_type"):
        read_adapters([pair[0], moved], base_given=True)


def test_updates_of_other_shapes_are_refused(pair, tmp_path):
    wide = save_base(tmp_path / "wide", hidden_size=64)
    adapter = save_adapter(tmp_path / "adapter", wide, target_modules=["q_proj"])
    with pytest.raises(UserError, match=r"makes \[32, 32\] of '.*q_proj\.weight' and .* \[64, 64\]: they belong to"):
        read_adapters([pair[0], adapter], base_given=True)


def test_an_adapter_given_twice_and_weights_that_do_not_match_are_refused(pair):
    with pytest.raises(UserError, match="is given twice"):
        read_adapters([pair[0], pair[0]])
    with pytest.raises(UserError, match="3 for 2 adapters"):
        read_adapters(pair, Combination(weights=(1.0, 1.0, 1.0)))


def test_fused_experts_are_merged_alone(pair, tmp_path):
    """Their pairs are laid out by expert, and their factors are read when they are placed."""
    copied = tmp_path / "experts"
    shutil.copytree(pair[0], copied)
    change_json(copied / "adapter_config.json", target_parameters=["mlp.experts.down_proj"])
    with pytest.raises(UserError, match=r"fused experts, target_parameters.*one adapter at a time"):
        read_adapters([copied, pair[1]])
