from __future__ import annotations

import copy
import logging
from collections import Counter

import pytest
import torch

from hf_recipes.core.errors import UserError
from hf_recipes.models.base import load_base
from hf_recipes.models.build import build_qlora_model
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.placement import FSDP, ZERO3
from hf_recipes.models.quantized import (
    FOUR_BIT_KEYS,
    QuantizationSettings,
    check_eight_bit,
    choose_quantization,
    freeze_quantized,
    nf4_config,
)
from hf_recipes.models.source import find_model, one_sentence


def train_steps(model, tokenizer, steps=12, lr=1e-2):
    """Losses of a few AdamW steps on one sentence."""
    ids = tokenizer("Please send 12 blue pens to Anna.", return_tensors="pt").input_ids
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def first_query(model):
    return model.base_model.model.model.layers[0].self_attn.q_proj.base_layer


@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
@pytest.mark.parametrize("double_quant", [True, False])
def test_four_bits_of_both_types_with_and_without_double_quantisation(four_bit_model_dir, quant_type, double_quant):
    model, tokenizer = build_qlora_model(
        str(four_bit_model_dir),
        r=4,
        quant_type=quant_type,
        double_quant=double_quant,
        compute_dtype="fp32",
        dropout=0.0,
    )
    state = first_query(model).weight.quant_state
    assert (state.quant_type, state.nested) == (quant_type, double_quant)
    losses = train_steps(model, tokenizer)
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_eight_bit_base_trains_on_this_machine_and_is_counted_by_its_shapes(four_bit_model_dir, dtype):
    model, tokenizer = build_qlora_model(
        str(four_bit_model_dir), r=4, load_in_8bit=True, compute_dtype=dtype, dropout=0.0
    )
    base = first_query(model)
    assert (type(base).__name__, base.weight.dtype) == ("Linear8bitLt", torch.int8)
    trainable, total = count_parameters(model)
    # 4 · ((64 + 64) + (64 + 32)) · 2 layers of LoRA beside a base of one weight for each of the fp32 model's.
    full = load_base(find_model(str(four_bit_model_dir)), dtype="fp32")
    assert (trainable, total - trainable) == (1792, count_parameters(full)[1])
    losses = train_steps(model, tokenizer)
    assert losses[-1] < losses[0] - 0.05
    with torch.no_grad():  # what an evaluation in between does to the layers must not stop the training
        model.eval()(input_ids=torch.tensor([[1, 2, 3]]))
    assert train_steps(model.train(), tokenizer, steps=3)[-1] < losses[0] - 0.05


def test_t1_every_spelling_of_a_dtype_reaches_the_quantisation():
    for name in ("bf16", "bfloat16", "torch.bfloat16"):
        config = nf4_config(name, name)
        assert config.bnb_4bit_compute_dtype == config.bnb_4bit_quant_storage == torch.bfloat16
    with pytest.raises(UserError, match=r"bnb_4bit_quant_storage: 'bf61' is not a dtype \(did you mean 'bf16'\?\)"):
        nf4_config("bf16", "bf61")
    with pytest.raises(UserError, match=r"'nf5' is none of nf4, fp4 \(did you mean 'nf4'\?\)"):
        nf4_config("bf16", quant_type="nf5")


@pytest.mark.parametrize("name", ["bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"])
def test_t7_what_acts_on_four_bits_is_refused_beside_eight(four_bit_model_dir, name):
    check_eight_bit(["load_in_8bit", "lora_r"])
    with pytest.raises(UserError, match=f"^{name}: acts on a base in four bits only, not with load_in_8bit"):
        check_eight_bit(["load_in_8bit", name])
    field = FOUR_BIT_KEYS[name]
    value = {"quant_type": "nf4", "double_quant": True, "quant_storage": "bf16"}[field]
    with pytest.raises(UserError, match=f"^{field}: acts on a base in four bits only"):
        build_qlora_model(str(four_bit_model_dir), load_in_8bit=True, **{field: value})


@pytest.mark.parametrize("settings", [{"quant_type": "fp4"}, {"quant_storage": "bf16"}])
def test_t7_changed_four_bit_settings_are_refused_beside_eight_bits(four_bit_model_dir, settings):
    settings = QuantizationSettings(load_in_8bit=True, **settings)
    with pytest.raises(UserError, match="acts on a base in four bits only"):
        choose_quantization(find_model(str(four_bit_model_dir)), "qlora", "bf16", settings)


@pytest.mark.parametrize(("field", "key"), [("double_quant", "use_bnb_nested_quant"), ("load_in_8bit", "load_in_8bit")])
def test_t7_a_text_is_no_truth_value(field, key):
    with pytest.raises(UserError, match=f"{key} is 'false': give true or false"):
        QuantizationSettings(**{field: "false"})


@pytest.mark.parametrize("sharding", [FSDP, ZERO3])
def test_t2_sharded_four_bit_weights_are_stored_in_the_compute_dtype(four_bit_model_dir, sharding, caplog):
    source = find_model(str(four_bit_model_dir))
    with caplog.at_level(logging.INFO):
        config = choose_quantization(source, "qlora", "bf16", sharding=sharding)
    assert config.bnb_4bit_quant_storage == torch.bfloat16
    assert f"stored as bfloat16, the compute dtype, as {sharding} needs it" in caplog.text
    same = choose_quantization(source, "qlora", "bf16", QuantizationSettings(quant_storage="bf16"), sharding=sharding)
    assert same.bnb_4bit_quant_storage == torch.bfloat16
    with pytest.raises(UserError, match="'uint8' cannot be sharded"):
        choose_quantization(source, "qlora", "bf16", QuantizationSettings(quant_storage="uint8"), sharding=sharding)
    with pytest.raises(UserError, match="8-bit base cannot be sharded"):
        choose_quantization(source, "qlora", "bf16", QuantizationSettings(load_in_8bit=True), sharding=sharding)


def test_t2_fsdp_is_found_in_the_environment_and_the_loaded_model_has_one_dtype(four_bit_model_dir, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    model, _ = build_qlora_model(str(four_bit_model_dir), r=4)
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}


def test_without_sharding_packed_weights_are_bytes(four_bit_model_dir):
    config = choose_quantization(find_model(str(four_bit_model_dir)), "qlora", "bf16")
    assert config.bnb_4bit_quant_storage == torch.uint8
    assert choose_quantization(find_model(str(four_bit_model_dir)), "lora", "bf16") is None


def test_t4_nothing_is_cast_up(four_bit_model_dir):
    model, _ = build_qlora_model(str(four_bit_model_dir), r=4)
    frozen = {name: p.dtype for name, p in model.named_parameters() if not p.requires_grad}
    assert {dtype for name, dtype in frozen.items() if "_proj" in name} == {torch.uint8}
    assert {dtype for name, dtype in frozen.items() if "_proj" not in name} == {torch.bfloat16}


def test_an_evaluation_does_not_repack_the_weights_on_cpus_with_avx512_bf16(four_bit_model_dir):
    source = find_model(str(four_bit_model_dir))
    model = load_base(source, dtype="fp32", quantization=choose_quantization(source, "qlora", "fp32"))
    layers = [module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    assert len(layers) == 14
    for layer in layers:
        layer.support_avx512bf16_for_cpu = True  # as bitsandbytes finds it on such a CPU
    freeze_quantized(model)
    before = copy.deepcopy(layers[0].weight.data)
    with torch.no_grad():
        model.eval()(input_ids=torch.tensor([[1, 2, 3]]))
    assert torch.equal(layers[0].weight.data, before)
    assert layers[0].weight.quant_state.nested


def test_without_bitsandbytes_one_sentence(four_bit_model_dir, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install bitsandbytes"):
        build_qlora_model(str(four_bit_model_dir))


def test_gguf_is_not_quantised_anew(tmp_path, tokenizer):
    from tiny_gguf import make_tiny_gguf

    make_tiny_gguf(tmp_path / "tiny.gguf", tokenizer)
    source = find_model(str(tmp_path / "tiny.gguf"))
    with one_sentence(source), pytest.raises(UserError, match="cannot be quantised anew"):
        choose_quantization(source, "qlora", "bf16")


def test_layers_that_this_cpu_computes_wrongly_in_four_bits_are_refused(four_bit_model_dir, monkeypatch):
    monkeypatch.setattr("hf_recipes.core.four_bits.misread_layers", lambda model: Counter({96: 3, 32: 1}))
    with pytest.raises(UserError, match=r"computes 4 layers .* \(.* theirs have 32, 96\): take a base in 16 bits"):
        build_qlora_model(str(four_bit_model_dir))
