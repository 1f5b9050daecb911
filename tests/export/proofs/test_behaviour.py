"""Healthy merges measure what rounding costs; each of several faults measures more, and is found."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from export_helpers import save_adapter, save_base, save_ia3, tensors_of
from safetensors.torch import save_file
from tiny_models import make_tiny_llama

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.bases.trained_quantization import TrainedQuantization
from hf_recipes.export.merge import merge_adapter
from hf_recipes.export.plan import plan_merge
from hf_recipes.export.proofs.behaviour import _plain, compare, compare_merged
from hf_recipes.export.proofs.live_models import load_plain
from hf_recipes.export.proofs.logits import compare_logits
from hf_recipes.export.proofs.rounding import rounded_tensors
from hf_recipes.export.proofs.verdict import lines, problems

NAMES = {"bf16": ("bfloat16", "BF16"), "fp16": ("float16", "F16"), "fp32": ("float32", "F32")}
Q, V = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qv")
NF4 = {"kind": "nf4", "dtype": "bfloat16", "double": True, "skip": None}


@pytest.fixture(scope="module")
def chat_base(tmp_path_factory, tokenizer):
    """A tiny bf16 chat model whose head is decided, so that what is said depends on the weights."""
    model = make_tiny_llama(len(tokenizer), tied=False)
    with torch.no_grad():
        model.lm_head.weight.mul_(30)
    directory = save_base(tmp_path_factory.mktemp("base") / "base", model, dtype=torch.bfloat16)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def lora(tmp_path_factory, chat_base):
    """LoRA on all linear layers of `chat_base`."""
    return save_adapter(tmp_path_factory.mktemp("lora") / "adapter", chat_base, target_modules="all-linear")


@pytest.fixture(scope="module")
def good(tmp_path_factory, chat_base, lora):
    """`lora` merged into bf16."""
    output = tmp_path_factory.mktemp("good") / "out"
    merge_adapter(lora, output=output, dtype="bf16", proof="off")
    return output


def order(adapter, base, merged, dtype="bf16", **more):
    plan = plan_merge(read_adapter(adapter), read_base(base), NAMES[dtype][1])
    return {
        "adapters": [[str(adapter), 1.0]],
        "live": {"base": str(base), "quantization": None},
        "as_trained": None,
        "merged": str(merged),
        "tokenizer": str(merged),
        "dtype": NAMES[dtype][0],
        "rounded": rounded_tensors(plan),
        "rows": [],
        "prompts": [],
        "seed": 0,
        **more,
    }


def measure(adapter, base, merged, dtype="bf16", **more):
    return _plain(compare(order(adapter, base, merged, dtype, **more)))


def spoilt(tmp_path, merged, change):
    """A copy of a merged model with its tensors changed."""
    directory = tmp_path / "spoilt"
    shutil.copytree(merged, directory)
    state = tensors_of(directory)
    change(state)
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


KINDS = {
    "lora": {"target_modules": "all-linear"},
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "rows": {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [40, 41, 42]}},
}


def grid():
    """Every kind in bf16; fp16, which differs by its number of bits alone, is tried more rarely."""
    for kind in (*KINDS, "ia3"):
        yield kind, "bf16"
        yield pytest.param(kind, "fp16", marks=pytest.mark.trials)


@pytest.mark.parametrize(("kind", "dtype"), grid())
def test_a_good_merge_measures_what_rounding_costs(tmp_path, chat_base, kind, dtype):
    make = save_ia3 if kind == "ia3" else save_adapter
    adapter = make(tmp_path / "adapter", chat_base, **KINDS.get(kind, {}))
    merge_adapter(adapter, base=chat_base, output=tmp_path / "out", dtype=dtype, proof="off")
    result = measure(adapter, chat_base, tmp_path / "out", dtype)
    assert problems(result, dtype) == []
    assert 0.25 < result["kl_mean"] / result["floor"]["kl_mean"] < 3  # few weights decide what these models say
    assert result["update_share"] == pytest.approx(1, abs=0.02)
    assert result["effect"]["kl_mean"] > 100 * result["kl_mean"]


def test_in_fp32_nothing_is_lost(tmp_path, chat_base, lora):
    merge_adapter(lora, output=tmp_path / "out", dtype="fp32", proof="off")
    result = measure(lora, chat_base, tmp_path / "out", "fp32")
    assert problems(result, "fp32") == []
    assert result["kl_mean"] < 1e-10


def test_a_resized_and_a_tied_model_pass(tmp_path, tokenizer):
    base = save_base(tmp_path / "base", make_tiny_llama(len(tokenizer), tied=True))
    tokenizer.save_pretrained(base)
    adapter = save_adapter(
        tmp_path / "adapter", base, resize=len(tokenizer) + 8, target_modules=["q_proj", "embed_tokens"]
    )
    merge_adapter(adapter, output=tmp_path / "out", dtype="bf16", proof="off")
    result = measure(adapter, base, tmp_path / "out")
    assert problems(result, "bf16") == []


def update(state, base, name):
    return state[name].float() - base[name].float()


def left_out(state, base):
    state[Q] = base[Q]


def scaled(state, base):
    for name in state:
        if name.endswith("proj.weight"):
            state[name] = (base[name].float() + 1.02 * update(state, base, name)).bfloat16()


def flipped(state, base):
    state[V] = (base[V].float() - update(state, base, V)).bfloat16()


def swapped(state, base):
    other = V.replace("layers.0", "layers.1")
    mine, yours = update(state, base, V), update(state, base, other)
    state[V], state[other] = (base[V].float() + yours).bfloat16(), (base[other].float() + mine).bfloat16()


def rows_off_by_one(state, base):
    state["model.embed_tokens.weight"] = state["model.embed_tokens.weight"].roll(1, 0)


def lost(state, base):
    state.update(base)


RARELY = [pytest.param(fault, marks=pytest.mark.trials) for fault in (swapped, lost)]


@pytest.mark.parametrize("fault", [left_out, scaled, flipped, rows_off_by_one, *RARELY])
def test_a_fault_is_found(tmp_path, chat_base, lora, good, fault):
    base = tensors_of(chat_base)
    result = measure(lora, chat_base, spoilt(tmp_path, good, lambda state: fault(state, base)))
    assert any(part in problem for problem in problems(result, "bf16") for part in ("mean KL", "of what the adapter"))


def test_nan_and_missing_tensors_are_found(tmp_path, chat_base, lora, good):
    broken = spoilt(tmp_path, good, lambda state: state[Q].fill_(float("nan")))
    assert any("NaN" in problem for problem in problems(measure(lora, chat_base, broken), "bf16"))
    shutil.rmtree(broken)
    broken = spoilt(tmp_path, good, lambda state: state.pop("lm_head.weight"))
    assert any("lm_head.weight" in problem for problem in problems(measure(lora, chat_base, broken), "bf16"))


def test_another_tokenizer_is_found(tmp_path, chat_base, lora, good):
    other = spoilt(tmp_path, good, lambda state: None)
    template = (other / "chat_template.jinja").read_text()
    (other / "chat_template.jinja").write_text(template.replace("<|im_end|>\n", "<|im_end|>"))
    found = problems(measure(lora, chat_base, other, tokenizer=str(chat_base)), "bf16")
    assert len(found) == 3 and all("chat template" in problem for problem in found)


def test_samples_prompts_and_the_quantised_base_are_told(chat_base, lora, good):
    rows = [list(range(3, 60)), [5, 6, 7]]
    result = measure(
        lora, chat_base, good, rows=rows, prompts=[[9, 8, 7]], as_trained={"base": str(chat_base), "quantization": NF4}
    )
    assert (result["prompts"], result["samples"]) == (5, 2)
    assert set(result["loss"]) == {"base", "adapter", "merged"}
    assert result["loss"]["merged"] == pytest.approx(result["loss"]["adapter"], abs=1e-2)
    # What four bits lose is more than what bf16 does, and is told without being held against the merge.
    assert result["as_trained"]["kl_mean"] > 10 * result["kl_mean"]
    assert problems(result, "bf16") == []


def test_the_quantised_side_computes_with_the_stored_values_on_every_cpu(chat_base):
    """The definition: each value is its code's times the largest absolute value of its block."""
    from bitsandbytes.functional import quantize_4bit

    facts = {"architectures": ["LlamaForCausalLM"]}
    model, _ = load_plain(chat_base, facts, TrainedQuantization(**{**NF4, "double": False}))
    for name, weight in tensors_of(chat_base).items():
        if "_proj" in name:
            packed, state = quantize_4bit(weight, quant_type="nf4")
            codes = torch.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], 1).reshape(-1).long()
            value = (state.code[codes] * state.absmax.repeat_interleave(64)).reshape(weight.shape)
            layer = model.get_submodule(name.removesuffix(".weight"))
            with torch.no_grad():
                computed = layer(torch.eye(weight.shape[1])).T
            torch.testing.assert_close(computed, value, rtol=2**-8, atol=0)  # some kernels round to bf16 first


@pytest.mark.trials
def test_a_merge_into_dequantised_values_is_what_was_trained(tmp_path, chat_base, lora, good):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        chat_base, quantization_config=TrainedQuantization(**NF4).to_config(), dtype=torch.bfloat16
    ).dequantize()
    shutil.copytree(chat_base, tmp_path / "dequantised")
    state = tensors_of(chat_base)
    state |= {name: each.bfloat16().clone() for name, each in model.state_dict().items() if name in state}
    save_file(state, tmp_path / "dequantised" / "model.safetensors", metadata={"format": "pt"})
    merge_adapter(lora, base=tmp_path / "dequantised", output=tmp_path / "out", dtype="bf16", proof="off")
    result = compare_merged(
        {
            "adapters": [[str(lora), 1.0]],
            "live": {"base": str(chat_base), "quantization": NF4},
            "directories": {"original": str(good), "dequantized": str(tmp_path / "out")},
            "rows": [list(range(3, 60))],
            "prompts": [],
        }
    )
    kl = {name: each["kl_mean"] for name, each in result["distances"].items()}
    assert kl["dequantized"] < kl["original"] / 10 < kl["base"] / 10
    assert set(result["loss"]) == {"base", "adapter", "original", "dequantized"}


@pytest.mark.trials
def test_weighted_adapters_add_up(tmp_path, chat_base, lora):
    """``W + 0.5·ΔW₁ − 2·ΔW₂``, made here, is what the live adapters compute together."""
    second = save_adapter(tmp_path / "second", chat_base, seed=5, target_modules="all-linear", r=2)
    merged = tmp_path / "out"
    merge_adapter(lora, output=merged, dtype="fp32", proof="off")
    merge_adapter(second, output=tmp_path / "other", dtype="fp32", proof="off")
    base, one, two = tensors_of(chat_base), tensors_of(merged), tensors_of(tmp_path / "other")
    sums = {name: b.float() + 0.5 * (one[name] - b.float()) - 2 * (two[name] - b.float()) for name, b in base.items()}
    save_file(sums, merged / "model.safetensors", metadata={"format": "pt"})
    given = order(lora, chat_base, merged, "fp32", adapters=[[str(lora), 0.5], [str(second), -2.0]])
    assert problems(_plain(compare(given)), "fp32") == []
    assert problems(_plain(compare({**given, "adapters": [[str(lora), 0.5], [str(second), 2.0]]})), "fp32")


def test_kinds_without_a_live_sum_are_refused(tmp_path, chat_base):
    adapter = save_adapter(tmp_path / "adapter", chat_base, target_modules=["q_proj"], use_dora=True)
    with pytest.raises(UserError, match="use --proof tensors"):
        compare_logits([(adapter, 0.5)], chat_base, tmp_path / "out")


@pytest.mark.trials
@pytest.mark.slow
def test_the_proof_runs_in_a_process_of_its_own(chat_base, lora, good):
    plan = plan_merge(read_adapter(lora), read_base(chat_base), "BF16")
    result = compare_logits(lora, chat_base, good, rounded=rounded_tensors(plan), rows=[[4, 5, 6, 7]])
    json.dumps(result, allow_nan=False)
    told = "\n".join(lines(result))
    assert "rounding to bfloat16 costs KL" in told and "of 4 greedy answers the same" in told
    assert "loss on what was learned of 1 samples" in told and result["notices"] == []
