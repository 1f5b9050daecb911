"""Merged directories against what vLLM's source says it accepts."""

from __future__ import annotations

import json
import shutil

import pytest
from export_helpers import change_json, make_gpt2, save_base
from safetensors.torch import load_file, save_file

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.serving.facts import model_facts, rank_choice, vllm_facts
from hf_recipes.export.serving.report import check_serving, serving_report


@pytest.fixture
def merged(tmp_path, tiny_model_dir):
    """A whole model in bf16, with tokenizer, template and generation config."""
    directory = tmp_path / "my run" / "merged-bf16"
    shutil.copytree(tiny_model_dir, directory)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(directory / "model.safetensors").items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    change_json(directory / "config.json", dtype="bfloat16")
    return directory


def levels(directory, about=None, **options):
    report = serving_report(directory, **options)
    return [finding.level for finding in report.findings if about in (None, finding.about)]


def text(directory, about):
    return next(finding.text for finding in check_serving(directory) if finding.about == about)


def test_a_whole_model_gets_its_line(merged):
    report = serving_report(merged)
    assert report.loads and {finding.level for finding in report.findings} == {"ok"}
    assert report.command == (f"vllm serve '{merged}' --dtype bfloat16 --max-model-len 256 --served-model-name my-run")
    assert report.lines()[-1].strip() == report.command
    assert json.loads(json.dumps(report.to_dict()))["loads"] is True
    report.require()


def test_weights_in_fp32_are_told_to_be_halved(merged):
    tensors = {name: tensor.float() for name, tensor in load_file(merged / "model.safetensors").items()}
    save_file(tensors, merged / "model.safetensors")
    assert "make them agree" in text(merged, "dtype")
    change_json(merged / "config.json", dtype="float32")
    assert levels(merged, "dtype") == ["warning"] and "fp32" in text(merged, "dtype")
    assert "--dtype bfloat16" in serving_report(merged).command


def test_gemma_in_fp16_is_not_served_in_fp16(merged):
    tensors = {name: tensor.half() for name, tensor in load_file(merged / "model.safetensors").items()}
    save_file(tensors, merged / "model.safetensors")
    change_json(merged / "config.json", dtype="float16")
    assert levels(merged, "dtype") == ["ok"]
    change_json(merged / "config.json", model_type="gemma2", architectures=["Gemma2ForCausalLM"])
    assert levels(merged, "dtype") == ["warning"]
    assert "--dtype bfloat16" in serving_report(merged).command


@pytest.mark.parametrize(
    ("changes", "about", "says"),
    [
        ({"architectures": ["NobodyForCausalLM"]}, "architecture", "neither in vLLM"),
        ({"architectures": None}, "architecture", "names no architectures"),
        ({"architectures": ["Phi3SmallForCausalLM"]}, "architecture", "until 0.9.2"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "form", "--quantization fp8"),
        ({"tie_word_embeddings": False}, "weights", "no lm_head.weight"),
        ({"vocab_size": 500}, "vocabulary", "450 rows"),
    ],
)
def test_what_will_not_load_says_why(merged, changes, about, says):
    change_json(merged / "config.json", **changes)
    report = serving_report(merged)
    refused = [finding for finding in report.findings if finding.level == "will not load"]
    assert [finding.about for finding in refused] == [about] and says in refused[0].text
    assert report.command is None
    with pytest.raises(CheckFailed, match="will not load"):
        report.require()


def test_a_model_outside_the_registry_falls_back_on_transformers(merged):
    change_json(merged / "config.json", architectures=["HeliumForCausalLM"])
    assert levels(merged, "architecture") == ["warning"]


def test_quantised_forms_that_vllm_reads_are_fine(merged):
    change_json(merged / "config.json", quantization_config={"quant_method": "compressed-tensors"})
    assert levels(merged, "form") == ["ok"]


def test_a_gguf_alone_is_for_another_server(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert next(f.level for f in check_serving(tmp_path)) == "will not load"
    assert "llama.cpp" in text(tmp_path, "form")


def test_cut_weights_and_lost_shards_are_named(merged):
    file = merged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert levels(merged, "weights") == ["will not load"]
    file.rename(merged / "elsewhere")
    (merged / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00001.safetensors"}}))
    assert "model-00001.safetensors is missing" in text(merged, "weights")


def test_a_server_that_never_stops_is_foreseen(merged):
    """The template ends answers with <|im_end|>; generation config and tokenizer say <|endoftext|> (case M9)."""
    assert levels(merged, "end of turn") == ["ok"]
    change_json(merged / "tokenizer_config.json", eos_token="<|endoftext|>")
    change_json(merged / "generation_config.json", eos_token_id=[0])
    assert levels(merged, "end of turn") == ["warning"]
    assert "<|im_end|> (2)" in text(merged, "end of turn")
    change_json(merged / "generation_config.json", eos_token_id=[0, 2])
    assert levels(merged, "end of turn") == ["ok"]


def test_tokenizer_template_and_sampling_defaults(merged):
    change_json(merged / "generation_config.json", temperature=0.6, top_p=1.0)
    assert "temperature 0.6," in text(merged, "sampling") and "top_p" not in text(merged, "sampling")
    (merged / "chat_template.jinja").unlink()
    assert levels(merged, "chat template") == ["warning"]
    (merged / "tokenizer.json").unlink()
    assert levels(merged, "tokenizer") == ["will not load"]


def test_wrong_use_is_one_sentence(tmp_path, merged):
    with pytest.raises(UserError, match="is not a directory"):
        check_serving(tmp_path / "nowhere")
    (merged / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json cannot be read as JSON"):
        check_serving(merged)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", {"added_tokens": [{"id": 1}]}),
        ("tokenizer.json", {"added_tokens": [1]}),
        ("tokenizer.json", {"model": {"vocab": {"a": "one"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": ["a"]}),
    ],
)
def test_tokens_that_are_none_are_one_sentence(merged, file, content):
    change_json(merged / file, **content)
    with pytest.raises(UserError, match="are not texts with their ids"):
        check_serving(merged)


def test_an_index_that_is_none_is_a_finding(merged):
    (merged / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}')
    assert "is not a map of tensors to files" in text(merged, "weights")


def test_the_table_knows_families_and_ranks():
    assert model_facts("LlamaForCausalLM") == {"lora": True, "embeddings": ["embed_tokens", "lm_head"]}
    assert model_facts("Qwen3ForSequenceClassification") == model_facts("Qwen3ForCausalLM")
    assert model_facts("GPT2LMHeadModel") == {"lora": False}
    assert model_facts("NobodyForCausalLM") is None
    assert [rank_choice(rank) for rank in (1, 2, 16, 17, 512, 513)] == [1, 8, 16, 32, 512, None]
    assert vllm_facts()["version"] and vllm_facts()["sources"].keys() < vllm_facts().keys()


def test_gpt2_is_served_whole(tmp_path):
    directory = save_base(tmp_path / "gpt2", make_gpt2())
    assert [f.level for f in check_serving(directory) if f.about == "architecture"] == ["ok"]
