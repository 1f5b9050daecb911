"""The cases M1 to M13 that are not about ties (`test_merge_tied.py`) or kills (`test_staging.py`)."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys

import pytest
import torch
from export_helpers import (
    change_json,
    change_tensors,
    live_logits,
    make_gpt2,
    merged_logits,
    peft_merge,
    read,
    save_adapter,
    save_base,
    tensors_of,
)
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, BitsAndBytesConfig

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.export.merge import REPORT_NAME, merge_adapter

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def refused(adapter, output, match, **arguments):
    """The merge is refused in one sentence and leaves nothing, not even under a hidden name."""
    before = sorted(output.parent.iterdir())
    with pytest.raises(UserError, match=match) as error:
        merge_adapter(adapter, **{"output": output, "dtype": "fp32", **arguments})
    assert "\n" not in str(error.value)
    assert sorted(output.parent.iterdir()) == before


def save_4bit(directory, base):
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    AutoModelForCausalLM.from_pretrained(base, quantization_config=settings).save_pretrained(directory)
    return directory


@pytest.fixture
def base_4bit(tmp_path):
    """A base packed to NF4, and the 16-bit model it was made from; layers are wide enough for blocks of 64 values."""
    original = save_base(tmp_path / "original", dtype=torch.bfloat16, hidden_size=64, intermediate_size=128)
    return save_4bit(tmp_path / "packed", original), original


def test_m1_an_adapter_trained_on_4_bits_merges_into_the_16_bit_original(tmp_path, base_4bit):
    packed, original = base_4bit
    adapter = save_adapter(tmp_path / "adapter", packed, target_modules=["q_proj"])
    merge_adapter(adapter, base=original, output=tmp_path / "out", dtype="bf16")
    golden = peft_merge(original, adapter)
    assert all(torch.equal(tensor, golden[name]) for name, tensor in tensors_of(tmp_path / "out").items())
    assert "quantization_config" not in read(tmp_path / "out" / "config.json")


def test_m7_a_4_bit_base_is_dequantised_first(tmp_path, base_4bit):
    packed, _ = base_4bit
    adapter = save_adapter(tmp_path / "adapter", packed, target_modules=["q_proj"])
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    live = AutoModelForCausalLM.from_pretrained(packed).dequantize().state_dict()
    written = tensors_of(tmp_path / "out")
    assert set(written) == set(live)
    parts = tensors_of(adapter)
    for name, tensor in written.items():
        expected = live[name].float()
        if "q_proj" in name:
            module = "base_model.model." + name.removesuffix(".weight")
            # alpha 8 / rank 4
            expected = expected + 2 * (parts[f"{module}.lora_B.weight"] @ parts[f"{module}.lora_A.weight"])
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-6)
    assert "quantization_config" not in read(tmp_path / "out" / "config.json")


def test_m2_a_tensor_without_a_place_in_the_base_is_named(tmp_path, adapter):
    def misname(tensors):
        tensors[Q.replace("layers.0", "layers.7") + ".lora_A.weight"] = tensors.pop(f"{Q}.lora_A.weight")
        tensors[Q.replace("layers.0", "layers.7") + ".lora_B.weight"] = tensors.pop(f"{Q}.lora_B.weight")

    change_tensors(adapter, misname)
    refused(adapter, tmp_path / "out", r"2 of 8 adapter tensors have no counterpart .*layers\.7.*q_proj\.lora_A")


def test_m2_a_tensor_of_unknown_kind_is_named(tmp_path, adapter):
    change_tensors(adapter, lambda tensors: tensors.update({f"{Q}.lora_C.weight": torch.ones(2, 2)}))
    refused(adapter, tmp_path / "out", r"q_proj\.lora_C\.weight' is of a kind that is not known")


def test_m2_an_adapter_that_changes_nothing_fails_the_check(tmp_path, adapter):
    change_tensors(adapter, lambda tensors: [t.zero_() for name, t in tensors.items() if "lora_B" in name])
    with pytest.raises(CheckFailed, match="all its B matrices are zero"):
        merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    assert not (tmp_path / "out").exists()


def test_m2_updates_below_a_rounding_step_fail_the_check(tmp_path, adapter):
    change_tensors(adapter, lambda tensors: [t.mul_(1e-9) for name, t in tensors.items() if "lora_B" in name])
    with pytest.raises(CheckFailed, match="no weight changed"):
        merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


@pytest.mark.parametrize(
    ("to", "dtype", "name"),
    [
        ("bf16", torch.bfloat16, "bfloat16"),
        ("fp16", torch.float16, "float16"),
        ("fp32", torch.float32, "float32"),
        ("torch.bfloat16", torch.bfloat16, "bfloat16"),
    ],
)
def test_m3_one_dtype_throughout_and_in_the_config(tmp_path, base, adapter, to, dtype, name):
    report = merge_adapter(adapter, output=tmp_path / "out", dtype=to)
    written = tensors_of(tmp_path / "out")
    assert {tensor.dtype for tensor in written.values()} == {dtype}
    config = read(tmp_path / "out" / "config.json")
    assert config["dtype"] == name
    assert report.bytes == sum(tensor.nbytes for tensor in written.values())
    golden = peft_merge(base, adapter)  # fp32: rounded once to the target it is what we write
    assert all(torch.equal(tensor, golden[key].to(dtype)) for key, tensor in written.items())


def test_m3_a_value_that_fp16_cannot_hold_is_named(tmp_path, base, adapter):
    state = tensors_of(base)
    state["model.norm.weight"][0] = 1e6
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    refused(adapter, tmp_path / "out", r"'model\.norm\.weight' cannot be merged: its values do not fit", dtype="fp16")


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_m6_a_gptq_or_awq_base_is_refused_at_once(tmp_path, base, adapter, method):
    change_json(base / "config.json", quantization_config={"quant_method": method, "bits": 4})
    (base / "model.safetensors").unlink()  # "at once": the weights are not looked at
    refused(adapter, tmp_path / "out", f"{method.upper()}-quantised.*give the 16-bit model .* with --base")


def test_m6_packed_weights_without_a_word_in_the_config_are_refused(tmp_path, base, adapter):
    state = tensors_of(base)
    state["model.layers.0.mlp.up_proj.weight"] = torch.ones(4, 4, dtype=torch.int32)
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    refused(adapter, tmp_path / "out", "holds quantised weights")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_m8_nan_in_the_adapter_is_named(tmp_path, adapter, value):
    change_tensors(adapter, lambda tensors: tensors[f"{Q}.lora_A.weight"].view(-1)[5:6].fill_(value))
    refused(adapter, tmp_path / "out", rf"'{Q}\.lora_A\.weight' holds NaN or Inf")


def test_m9_tokenizer_template_and_end_of_turn_are_the_trained_ones(tmp_path, base, adapter, tokenizer):
    tokenizer.save_pretrained(base)
    tokenizer.save_pretrained(adapter)
    (base / "chat_template.jinja").write_text("the base's")
    (adapter / "chat_template.jinja").write_text("the trained one")
    change_json(base / "generation_config.json", eos_token_id=77)
    (adapter / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9], "temperature": 0.5}))
    merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "the trained one"
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (adapter / "tokenizer.json").read_bytes()
    generation = read(tmp_path / "out" / "generation_config.json")
    # What the base stopped at stays a stop: a server may need it, and more of them do no harm.
    assert generation == {"eos_token_id": [2, 9, 77], "temperature": 0.5}


def test_m9_a_trained_end_token_that_generation_does_not_know_is_added(tmp_path, base, adapter, tokenizer):
    tokenizer.save_pretrained(adapter)
    change_json(base / "generation_config.json", eos_token_id=77)
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    assert read(tmp_path / "out" / "generation_config.json")["eos_token_id"] == [77, tokenizer.eos_token_id]
    assert any("End tokens of the training" in notice for notice in report.notices)


@pytest.mark.parametrize("recorded", [None, 5])
def test_m9_the_token_at_which_the_template_ends_an_answer_is_added_where_no_run_says_another(
    recorded, tmp_path, base, adapter, tokenizer
):
    """An adapter of another tool on a Llama 3 base: eos_token is not what ends a turn."""
    other = copy.deepcopy(tokenizer)
    other.eos_token = "<|endoftext|>"
    run = tmp_path / "run"
    run.mkdir()
    adapter = shutil.copytree(adapter, run / "adapter")
    other.save_pretrained(adapter)
    if recorded:
        (run / "run.json").write_text(json.dumps({"end_of_turn_token_ids": [recorded]}))
    change_json(base / "generation_config.json", eos_token_id=77)
    merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    wanted = recorded or tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert read(tmp_path / "out" / "generation_config.json")["eos_token_id"] == [77, other.eos_token_id, wanted]


def test_m9_without_a_trained_tokenizer_the_bases_is_copied_and_told(tmp_path, base, adapter, tokenizer):
    tokenizer.save_pretrained(base)
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert any("holds no tokenizer" in notice for notice in report.notices)


PEAK = """
import resource, sys
from pathlib import Path
from hf_recipes.export.merge import merge_adapter
from hf_recipes.core.tensors import read_header
import torch, hf_recipes.export.stream, hf_recipes.export.proofs.tensors
torch.ones(64, 64) @ torch.ones(64, 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
merge_adapter(sys.argv[1], output=sys.argv[2], dtype="bf16")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_m10_memory_is_that_of_a_few_tensors(tmp_path):
    """24 layers of 4 MiB in bf16, 108 MB in all: the peak grows by far less than the model."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 24}
    base = save_base(tmp_path / "base", dtype=torch.bfloat16, **sizes)
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["q_proj", "up_proj"])
    command = [sys.executable, "-c", PEAK, str(adapter), str(tmp_path / "out")]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1024
    model_bytes = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert model_bytes > 100_000_000
    assert grown < model_bytes / 3


def test_m10_shards_stay_as_in_the_base(tmp_path):
    base = save_base(tmp_path / "whole", dtype=torch.bfloat16)
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path / "base", max_shard_size="20KB")
    adapter = save_adapter(tmp_path / "adapter", tmp_path / "base", target_modules=["q_proj", "lm_head"])
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    before, after = (read(tmp_path / name / "model.safetensors.index.json") for name in ("base", "out"))
    assert len(set(before["weight_map"].values())) > 2
    assert after["weight_map"] == before["weight_map"]
    assert after["metadata"]["total_size"] == sum(t.nbytes for t in tensors_of(tmp_path / "out").values())
    assert after["metadata"]["total_size"] == 2 * before["metadata"]["total_size"]
    live, merged = live_logits(tmp_path / "base", adapter), merged_logits(tmp_path / "out")
    torch.testing.assert_close(merged, live, rtol=0, atol=2e-5)


def test_m11_the_config_is_carried_over_but_for_its_dtype(tmp_path, base, adapter):
    change_json(base / "config.json", architectures=["LlamaForCausalLM"], odd={"dtype": "keep", "list": [1, None]})
    merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    assert read(tmp_path / "out" / "config.json") == {**read(base / "config.json"), "dtype": "bfloat16"}


@pytest.mark.parametrize(("gone", "left"), [("lora_A", "lora_B"), ("lora_B", "lora_A")])
def test_m12_half_an_adapter_is_named(tmp_path, adapter, gone, left):
    change_tensors(adapter, lambda tensors: tensors.pop(f"{Q}.{gone}.weight"))
    refused(adapter, tmp_path / "out", rf"Half an adapter: '{Q}\.{left}\.weight' stands without '{Q}\.{gone}\.weight'")


def test_m12_an_empty_shard_is_named(tmp_path, adapter):
    change_tensors(adapter, lambda tensors: tensors.update({f"{Q}.lora_A.weight": torch.empty(0, 32)}))
    refused(adapter, tmp_path / "out", rf"'{Q}\.lora_A\.weight' has shape \[0, 32\].*not gathered")


@pytest.fixture
def recorded(tmp_path, base, adapter):
    """A run directory that recorded the hashes of its base, and its adapter."""
    run = tmp_path / "run"
    shutil.copytree(adapter, run / "adapter")
    hashes = {"model.safetensors": sha256_of_file(base / "model.safetensors")}
    record = {"base_model": {"name_or_path": str(base), "revision": None, "weights_sha256": hashes}}
    (run / "run.json").write_text(json.dumps(record))
    return run


def test_m13_the_recorded_base_is_taken(tmp_path, recorded):
    assert merge_adapter(recorded / "adapter", output=tmp_path / "out", dtype="bf16").base_identity == "same"


def test_m13_another_base_is_refused_unless_allowed(tmp_path, base, recorded, caplog):
    other = save_base(tmp_path / "other", seed=5)
    refused(recorded / "adapter", tmp_path / "out", "not the one the adapter was trained on", base=other)
    merged = merge_adapter(
        recorded / "adapter", base=other, output=tmp_path / "out", dtype="fp32", allow_other_base=True
    )
    assert merged.base_identity == "other"
    assert "not the one the adapter was trained on" in caplog.text


def test_m13_a_base_that_changed_since_training_is_refused(tmp_path, base, recorded):
    state = tensors_of(base)
    state["model.norm.weight"][0] += 1
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    refused(recorded / "adapter", tmp_path / "out", "other bytes in model.safetensors")


def test_a_base_of_other_shape_is_named_with_both_shapes(tmp_path, adapter):
    other = save_base(tmp_path / "other", hidden_size=48)
    refused(adapter, tmp_path / "out", r"\[48, 48\].*\[32, 32\]", base=other)


def test_a_base_that_is_not_here_names_the_flag(tmp_path, adapter):
    change_json(adapter / "adapter_config.json", base_model_name_or_path="someone/nothing-like-it")
    refused(adapter, tmp_path / "out", "'someone/nothing-like-it' is neither .*--base")
    change_json(adapter / "adapter_config.json", base_model_name_or_path=str(tmp_path / "gone"))
    refused(adapter, tmp_path / "out", "gone' is not a directory here.*--base")
    change_json(adapter / "adapter_config.json", base_model_name_or_path=None)
    refused(adapter, tmp_path / "out", "names no base model.*--base")


def test_a_damaged_base_is_named(tmp_path, base, adapter):
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused(adapter, tmp_path / "out", "The base is damaged: .*model.safetensors")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "PREFIX_TUNING adapter: it changes no weight"),
        ({"peft_type": "POLY"}, "POLY adapter, which is not merged here"),
        ({"alora_invocation_tokens": [1]}, "aLoRA"),
        ({"layer_replication": [[0, 2]]}, "layer replication"),
        ({"init_lora_weights": "pissa"}, "initialised by 'pissa'"),
        ({"init_lora_weights": "pissa_niter_4"}, "initialised by 'pissa_niter_4'"),
        ({"init_lora_weights": "olora"}, "initialised by 'olora'"),
        ({"init_lora_weights": "loftq"}, "initialised by 'loftq'"),
        ({"a_method_of_next_year": True}, "a_method_of_next_year is set"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_plain_lora_is_refused_by_its_name(tmp_path, adapter, values, sentence):
    change_json(adapter / "adapter_config.json", **values)
    refused(adapter, tmp_path / "out", sentence)


def test_weights_and_config_of_two_adapters_are_refused(tmp_path, adapter):
    change_json(adapter / "adapter_config.json", r=8)
    refused(adapter, tmp_path / "out", "not of rank 8")


def test_dora_without_its_magnitudes_is_refused(tmp_path, adapter):
    change_json(adapter / "adapter_config.json", use_dora=True)
    refused(adapter, tmp_path / "out", "lora_magnitude_vector' is missing, though use_dora is set")


def test_an_adapter_saved_as_a_pickle_is_refused_with_the_cure(tmp_path, adapter):
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    refused(adapter, tmp_path / "out", "pickle: load it with peft")


def test_a_classifier_gets_its_head_its_class_and_its_labels(tmp_path, tokenizer):
    base = save_base(tmp_path / "base", tied=False)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    torch.manual_seed(0)
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="SEQ_CLS"))
    with torch.no_grad():
        for parameter in (p for p in wrapped.parameters() if p.requires_grad):
            parameter.add_(torch.randn_like(parameter) * 0.05)
    run = tmp_path / "run"
    wrapped.save_pretrained(run / "adapter")
    (run / "run.json").write_text(json.dumps({"labels": ["bad", "fair", "good"]}))
    merge_adapter(run / "adapter", output=tmp_path / "out", dtype="fp32")
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert type(merged).__name__ == "LlamaForSequenceClassification"
    assert merged.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    ids = torch.arange(3, 40).reshape(1, -1)
    with torch.inference_mode():
        live, ours = wrapped.eval()(input_ids=ids).logits, merged.eval()(input_ids=ids).logits
    torch.testing.assert_close(ours, live, rtol=0, atol=1e-5)
    assert set(tensors_of(tmp_path / "out")) == set(merged.state_dict())


def test_gpt2_answers_as_the_live_adapter(tmp_path):
    base = save_base(tmp_path / "base", make_gpt2())
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    torch.testing.assert_close(merged_logits(tmp_path / "out"), live_logits(base, adapter), rtol=0, atol=2e-5)


def test_the_report_is_in_the_output_and_adds_up(tmp_path, base, adapter):
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    assert report.tensors_total == len(tensors_of(base))
    assert report.tensors_merged == report.tensors_changed == 4  # q_proj and v_proj of two layers
    assert report.adapter_tensors_consumed == len(tensors_of(adapter)) == 8
    assert report.proof["tensors"]["copied"] + report.proof["tensors"]["recomputed"] == report.tensors_total
    assert read(tmp_path / "out" / REPORT_NAME) == report.to_dict()
    assert "4 changed by 8 adapter tensors, all of them used" in report.lines()[0]


def test_merging_twice_gives_the_same_bytes(tmp_path, adapter):
    for name in ("one", "two"):
        merge_adapter(adapter, output=tmp_path / name, dtype="bf16", proof="off")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
