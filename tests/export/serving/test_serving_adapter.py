"""LoRA adapters against what vLLM's source says it serves beside a base; and the line for several of them."""

from __future__ import annotations

import shutil

import pytest
from export_helpers import change_json, change_tensors, make_gpt2, save_adapter, save_base, save_ia3

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.serving.facts import vllm_facts
from hf_recipes.export.serving.real_run import has_vllm, run_vllm
from hf_recipes.export.serving.report import check_serving, serving_report

QV = ["q_proj", "v_proj"]


@pytest.fixture
def served(tmp_path, tiny_model_dir):
    """A base with tokenizer, and a LoRA adapter with the same."""
    base = tmp_path / "base"
    shutil.copytree(tiny_model_dir, base)
    adapter = save_adapter(tmp_path / "orders" / "adapter", base, r=12, target_modules=QV)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(base / name, adapter / name)
    return base, adapter


def refused(adapter, about=None):
    return [f.text for f in check_serving(adapter) if f.level == "will not load" and about in (None, f.about)]


def test_a_plain_adapter_gets_its_line(served):
    base, adapter = served
    report = serving_report(adapter, kind="adapter")
    assert report.loads
    assert report.command == (
        f"vllm serve {base} --dtype bfloat16 --max-model-len 256 --enable-lora --max-lora-rank 16 "
        f"--lora-modules orders={adapter}"
    )


def test_several_adapters_share_one_server(served, tmp_path):
    base, adapter = served
    other = save_adapter(tmp_path / "replies" / "adapter", base, r=4, rank_pattern={"v_proj": 40}, target_modules=QV)
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    report = serving_report(adapter, kind="adapter", adapters=[other, adapter])
    assert (
        f"--max-lora-rank 64 --max-loras 3 --lora-modules orders={adapter} replies={other} orders-2=" in report.command
    )
    assert "different chat templates" in " ".join(report.lines())
    change_json(other / "adapter_config.json", base_model_name_or_path="another")
    with pytest.raises(UserError, match="different bases"):
        serving_report(adapter, kind="adapter", adapters=[other])
    assert serving_report(adapter, kind="adapter", adapters=[other], base=base).loads


@pytest.mark.parametrize(
    ("lora", "says"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "trained bias of LoRA"),
        ({"bias": "lora_only"}, "trained biases"),
        ({"modules_to_save": ["lm_head"]}, r"trained in full (lm_head)"),
        ({"trainable_token_indices": {"embed_tokens": [1, 2]}}, "trained tokens"),
        ({"r": 600}, "Rank 600"),
        ({"init_lora_weights": "olora"}, "'olora'"),
    ],
)
def test_what_vllm_does_not_serve_is_refused_with_the_way_out(tmp_path, lora, says):
    base = save_base(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, **{"target_modules": QV, **lora})
    told = " ".join(refused(adapter))
    assert says in told and "merge it" in told
    with pytest.raises(CheckFailed):
        serving_report(adapter, kind="adapter").require()


def test_rank_stabilised_and_gaussian_are_served(tmp_path):
    base = save_base(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, use_rslora=True, init_lora_weights="gaussian", target_modules=QV)
    assert refused(adapter) == []


def test_embeddings_are_served_where_the_model_has_them(tmp_path):
    base = save_base(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=[*QV, "embed_tokens", "lm_head"])
    assert refused(adapter) == []
    change_json(base / "config.json", architectures=["Qwen2ForCausalLM"])
    assert "no LoRA on embed_tokens, lm_head" in refused(adapter, "base")[0]


def test_an_extended_vocabulary_has_to_be_merged(tmp_path):
    base = save_base(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, resize=70, target_modules=["embed_tokens"])
    assert "70 words" in refused(adapter, "base")[0]


def test_a_base_without_lora_and_methods_without_lora(tmp_path):
    gpt2 = save_base(tmp_path / "gpt2", make_gpt2())
    adapter = save_adapter(tmp_path / "adapter", gpt2, target_modules=["c_attn"], fan_in_fan_out=True)
    assert "no adapters on GPT2LMHeadModel" in refused(adapter, "base")[0]
    ia3 = save_ia3(tmp_path / "ia3", save_base(tmp_path / "base"))
    assert "this is IA3" in refused(ia3, "method")[0]


def test_one_lora_for_all_experts_needs_its_switch(served):
    base, adapter = served

    def as_experts(tensors):
        for name in list(tensors):
            new = name.replace("self_attn.q_proj", "mlp.experts.base_layer").replace("self_attn.v_proj", "mlp.experts")
            tensors[new] = tensors.pop(name)

    change_tensors(adapter, as_experts)
    change_json(base / "config.json", architectures=["Qwen3MoeForCausalLM"])
    line = serving_report(adapter, kind="adapter").command
    assert "--enable-mixed-moe-lora-format" in line and '"is_3d_lora_weight": true' in line
    change_json(base / "config.json", architectures=["GptOssForCausalLM"])
    assert "--enable-mixed" not in serving_report(adapter, kind="adapter").command
    assert vllm_facts()["models"]["GptOssForCausalLM"]["fused_experts"]


def test_tokenizer_template_and_end_of_the_training_reach_the_server(served):
    base, adapter = served
    (adapter / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (adapter / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    (base / "tokenizer.json").unlink()
    report = serving_report(adapter, kind="adapter")
    assert f"--tokenizer {adapter} --chat-template {adapter / 'chat_template.jinja'}" in report.command
    assert any("with 7, at which the base does not stop" in line for line in report.lines())


def test_a_base_that_is_not_here_is_told(served):
    _, adapter = served
    change_json(adapter / "adapter_config.json", base_model_name_or_path="org/base")
    report = serving_report(adapter, kind="adapter")
    assert report.loads and "'org/base' is not here" in " ".join(report.lines())
    assert report.command.startswith("vllm serve org/base --enable-lora")


def test_a_python_without_vllm_is_one_sentence(served, tmp_path):
    if has_vllm():
        pytest.skip("vLLM is here")
    with pytest.raises(UserError, match="has no vLLM"):
        run_vllm(served[1], ["Hello"])
    assert not has_vllm(tmp_path / "no-python")


@pytest.mark.slow
@pytest.mark.skipif(not has_vllm(), reason="vLLM is not installed")
def test_vllm_answers(tiny_model_dir):
    answers = run_vllm(tiny_model_dir, ["Hello", "Paris"], max_new_tokens=8, engine={"enforce_eager": True})
    assert len(answers) == 2
