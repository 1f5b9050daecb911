from __future__ import annotations

import pytest
import torch

from hf_recipes.core.errors import UserError
from hf_recipes.models.build import (
    build_adapter_model,
    build_ia3_model,
    build_lora_model,
    build_model,
    build_partial_model,
    build_prefix_model,
    build_qlora_model,
)
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.source import find_model
from hf_recipes.models.tokenizer import load_tokenizer

# q_proj: 32 → 32, v_proj: 32 → 16 (two key-value heads of four), two layers: r · (32+32 + 32+16) · 2.
LORA_PARAMETERS_PER_RANK = (32 + 32 + 32 + 16) * 2


def batch(tokenizer):
    ids = tokenizer("Please send 12 blue pens to Anna.", return_tensors="pt").input_ids
    return {"input_ids": ids, "labels": ids}


def test_lora_trains_exactly_its_matrices(tiny_model_dir):
    model, tokenizer = build_lora_model(str(tiny_model_dir), r=4)
    trainable, total = count_parameters(model)
    assert trainable == 4 * LORA_PARAMETERS_PER_RANK
    assert total == trainable + sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n)
    model(**batch(tokenizer)).loss.backward()
    assert all((p.grad is not None) == ("lora_" in name) for name, p in model.named_parameters())


def test_qlora_is_nf4_doubly_quantised_with_bf16_compute_and_trains_on_this_machine(four_bit_model_dir):
    model, tokenizer = build_qlora_model(str(four_bit_model_dir), r=4, alpha=8)
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    state = layer.base_layer.weight.quant_state
    assert (state.quant_type, state.nested) == ("nf4", True)
    assert layer.base_layer.compute_dtype == torch.bfloat16
    assert layer.scaling["default"] == 2.0
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16  # not cast up to fp32
    assert count_parameters(model)[0] == 4 * 2 * LORA_PARAMETERS_PER_RANK  # twice as wide as `tiny_model_dir`
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(12):
        loss = model(**batch(tokenizer)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2


def test_t4_quantised_parameters_are_counted_as_what_they_stand_for(four_bit_model_dir):
    full, _ = build_model(str(four_bit_model_dir))
    quantised, _ = build_qlora_model(str(four_bit_model_dir), r=4)
    assert count_parameters(quantised)[1] - count_parameters(quantised)[0] == count_parameters(full)[1]


def test_full_model_is_fp32_and_trainable(tiny_model_dir):
    model, _ = build_model(str(tiny_model_dir))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", "torch.bfloat16"])
def test_t1_dtype_aliases(four_bit_model_dir, dtype):
    model, _ = build_model(str(four_bit_model_dir), dtype=dtype)
    assert model.dtype == torch.bfloat16
    quantised, _ = build_qlora_model(str(four_bit_model_dir), compute_dtype=dtype)
    assert quantised.base_model.model.model.layers[0].self_attn.q_proj.base_layer.compute_dtype == torch.bfloat16


def test_qlora_takes_its_dtype_by_either_name_but_not_two(four_bit_model_dir):
    model, _ = build_qlora_model(four_bit_model_dir, dtype="fp32")
    assert model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.compute_dtype == torch.float32
    build_qlora_model(four_bit_model_dir, dtype="fp32", compute_dtype="float32")
    with pytest.raises(UserError, match="compute_dtype is bf16 and dtype is fp32, which mean the same: give one"):
        build_qlora_model(four_bit_model_dir, dtype="fp32", compute_dtype="bf16")


@pytest.mark.parametrize("name", [None, 5, b"model", ["model"], ""])
def test_t7_a_name_that_is_none_is_one_sentence(name):
    for build in (build_model, build_lora_model, build_qlora_model, build_prefix_model):
        with pytest.raises(UserError, match=r"model_name_or_path is .*: give a directory"):
            build(name)


def test_wrong_settings_are_told_before_the_base_is_loaded(tiny_model_dir, tmp_path):
    (tmp_path / "config.json").write_text((tiny_model_dir / "config.json").read_text())  # no weights to load
    with pytest.raises(UserError, match="lora_r is 0"):
        build_lora_model(tmp_path, r=0)


def test_t7_a_target_that_matches_nothing_is_named_even_among_others(tiny_model_dir):
    with pytest.raises(UserError) as error:
        build_lora_model(str(tiny_model_dir), target_modules=["q_proj", "v_prj"])
    assert "'v_prj' is no module of LlamaForCausalLM (did you mean 'v_proj'?)" in str(error.value)


def test_all_linear_leaves_the_head_out(tiny_model_dir):
    model, _ = build_lora_model(str(tiny_model_dir), target_modules="all-linear")
    names = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name, _ in model.named_parameters() if ".lora_" in name}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("build", "argument", "sentence"),
    [
        (build_lora_model, "target_module", r"'target_module' is neither a setting of the method \(r, alpha, .* nor "
         r"a field of the model's config \(did you mean 'target_modules'\?\)"),
        (build_qlora_model, "quant_typ", r"\(did you mean 'quant_type'\?\)"),
        (build_model, "atn_implementation", r"'atn_implementation' is neither an argument of from_pretrained .* "
         r"\(did you mean 'attn_implementation'\?\)"),
        (build_adapter_model, "adapter_size", r"\(did you mean 'size'\?\)"),
        (build_lora_model, "lora_r", r"\(did you mean 'r'\?\)"),
        (build_lora_model, "lora_alpha", r"\(did you mean 'alpha'\?\)"),
        (build_ia3_model, "ia3_target_modules", r"\(did you mean 'target_modules'\?\)"),
        (build_qlora_model, "use_bnb_nested_quant", r"\(did you mean 'double_quant'\?\)"),
        (build_qlora_model, "bnb_4bit_quant_type", r"\(did you mean 'quant_type'\?\)"),
        (build_partial_model, "trainable_layer", r"\(did you mean 'trainable_layers'\?\)"),
    ],
)  # fmt: skip
def test_a_misspelt_argument_is_one_sentence_with_the_nearest(tiny_model_dir, build, argument, sentence):
    with pytest.raises(UserError, match=sentence):
        build(str(tiny_model_dir), **{argument: 1})


def test_arguments_reach_the_adapter_and_the_config_alike(tiny_model_dir):
    model, _ = build_lora_model(
        str(tiny_model_dir), r=2, use_dora=True, attn_implementation="eager", attention_dropout=0.25
    )
    layer = model.base_model.model.model.layers[0].self_attn
    assert (layer.q_proj.r["default"], layer.q_proj.use_dora["default"]) == (2, True)
    assert (model.config._attn_implementation, model.config.attention_dropout) == ("eager", 0.25)


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (build_partial_model, {"trainable_layers": 1}),
        (build_adapter_model, {}),
        (build_prefix_model, {}),
        (build_ia3_model, {}),
    ],
)
def test_every_method_builds_and_trains_a_part_of_the_model(tiny_model_dir, build, arguments):
    model, tokenizer = build(str(tiny_model_dir), dtype="fp32", **arguments)
    trainable, total = count_parameters(model)
    assert 0 < trainable < total
    model(**batch(tokenizer)).loss.backward()
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("./nowhere", "'./nowhere' is not a model directory"),
        ("/no/such/model", "is not a model directory"),
        ("nobody/no-such-model-here", "check the name, go online, or give the path"),
    ],
)
def test_u3_an_absent_model_is_one_sentence_and_paths_are_told_from_names(name, sentence):
    with pytest.raises(UserError) as error:
        build_model(name)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_an_adapter_is_not_a_base_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="holds an adapter, not a base model"):
        find_model(str(tmp_path))


def test_a_tokenizer_larger_than_the_embedding_is_refused(tiny_model_dir, tmp_path):
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(tiny_model_dir, copy)
    tokenizer = load_tokenizer(str(copy))
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(UserError, match=r"has \d+ tokens, the model.s embedding only \d+ rows"):
        build_model(str(copy))


def test_a_chat_template_can_be_given_as_a_file(tiny_model_dir, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    assert load_tokenizer(str(tiny_model_dir), chat_template_path=str(template)).chat_template == template.read_text()
    with pytest.raises(UserError, match="is not a file"):
        load_tokenizer(str(tiny_model_dir), chat_template_path=str(tmp_path / "none.jinja"))


@pytest.mark.parametrize(
    ("special", "pad"),
    [
        (["<|image_pad|>", "<|finetune_right_pad_id|>"], "<|finetune_right_pad_id|>"),
        (["[PAD]"], "[PAD]"),
        (["<|image_pad|>", "notepad"], "<|im_end|>"),
    ],
)
def test_a_missing_pad_token_is_the_vocabularys_own_else_the_end_token(tokenizer, tmp_path, special, pad, caplog):
    import copy

    without = copy.deepcopy(tokenizer)
    without.pad_token = None
    without.add_special_tokens({"additional_special_tokens": special})
    without.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with caplog.at_level("INFO"):
        loaded = load_tokenizer(str(tmp_path))
    assert (loaded.pad_token, len(loaded)) == (pad, len(without))
    assert f"No pad token set: padding with '{pad}'" in caplog.text


def test_the_identity_of_a_local_base_holds_its_hashes(tiny_model_dir):
    identity = find_model(str(tiny_model_dir)).identity()
    assert set(identity["weights_sha256"]) == {"model.safetensors"}
    assert len(identity["weights_sha256"]["model.safetensors"]) == 64
