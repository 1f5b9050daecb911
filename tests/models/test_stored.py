from __future__ import annotations

import json
import logging
import shutil

import pytest
import torch
from test_quantized import train_steps
from tiny_gguf import make_tiny_gguf
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments

from hf_recipes.core.errors import UserError
from hf_recipes.models.base import load_base
from hf_recipes.models.build import build_lora_model, build_model, build_partial_model, build_qlora_model
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.placement import FSDP
from hf_recipes.models.quantized import QuantizationSettings, choose_quantization, int8_config, nf4_config
from hf_recipes.models.source import find_model
from hf_recipes.models.stored import check_stored, stored_quantization

BITNET = {"quant_method": "bitnet", "linear_class": "autobitlinear"}


@pytest.fixture(scope="module")
def stored_base(four_bit_model_dir, tmp_path_factory):
    """A function: the directory of the tiny Llama, saved as bitsandbytes has quantised it."""
    made = {}

    def make(config):
        name = "int8" if config.load_in_8bit else config.bnb_4bit_quant_type
        if name not in made:
            made[name] = directory = tmp_path_factory.mktemp(name)
            load_base(find_model(str(four_bit_model_dir)), dtype="fp32", quantization=config).save_pretrained(directory)
            for file in four_bit_model_dir.glob("*token*"):
                shutil.copy(file, directory)
        return made[name]

    return make


def write_config(model_dir, target, **stored):
    """A copy of a model (or itself) whose config.json claims a quantisation."""
    if target != model_dir:
        shutil.copytree(model_dir, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": stored}))
    return find_model(str(target))


@pytest.mark.parametrize("config", [nf4_config("fp32"), nf4_config("fp32", quant_type="fp4"), int8_config()])
@pytest.mark.parametrize("build", [build_lora_model, build_qlora_model])
def test_a_base_stored_quantised_trains_as_it_is(stored_base, four_bit_model_dir, build, config, caplog):
    directory = str(stored_base(config))
    dtype = {"compute_dtype": "bf16"} if build is build_qlora_model else {"dtype": "bf16"}
    with caplog.at_level(logging.INFO):
        model, tokenizer = build(directory, r=4, dropout=0.0, **dtype)
    assert "(bitsandbytes) and used as it is: method" in caplog.text and "on it is QLoRA" in caplog.text
    bits = {"load_in_8bit": True} if config.load_in_8bit else {"quant_type": config.bnb_4bit_quant_type}
    fresh, _ = build_qlora_model(str(four_bit_model_dir), r=4, compute_dtype="fp32", **bits)
    for (name, there), (_, here) in zip(fresh.named_parameters(), model.named_parameters(), strict=True):
        plain = type(here) is torch.nn.Parameter
        assert "lora_" in name or torch.equal(there.bfloat16() if plain else there, here), name
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    if not config.load_in_8bit:
        assert layer.base_layer.compute_dtype == torch.bfloat16  # this run's, not the float32 it was saved with
    assert count_parameters(model) == count_parameters(fresh)
    losses = train_steps(model, tokenizer)
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("build", [build_model, build_partial_model])
def test_weights_stored_quantised_cannot_be_trained_themselves(stored_base, build):
    with pytest.raises(
        UserError, match=r"stored as nf4 \(bitsandbytes\), which 'method: \w+' cannot train: use method"
    ):
        build(str(stored_base(nf4_config("fp32"))))


def test_t2_a_base_stored_in_bytes_cannot_be_sharded(stored_base):
    source = find_model(str(stored_base(nf4_config("fp32"))))
    with pytest.raises(UserError, match="in uint8, which FSDP cannot shard beside bfloat16 weights"):
        choose_quantization(source, "qlora", "bf16", sharding=FSDP)
    with pytest.raises(UserError, match="in int8, which FSDP cannot shard"):
        choose_quantization(find_model(str(stored_base(int8_config()))), "lora", "bf16", sharding=FSDP)


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({"quant_method": "gptq", "bits": 4}, "stored as gptq: Loading a GPTQ quantized model requires optimum"),
        ({"quant_method": "awq", "bits": 4}, "stored as awq, which needs a package that is missing: .*gptqmodel"),
        ({"quant_method": "quark"}, "stored as quark"),
        ({"quant_method": "newest"}, "stored as newest, which transformers cannot load: Unknown quantization type"),
        ({"bits": 4}, "stored as an unnamed method, which transformers cannot load"),
        ({"quant_method": "vptq"}, "stored as vptq, which 'method: lora' cannot train: give the 16-bit model"),
    ],
)
def test_other_quantisations_are_judged_by_the_config_before_anything_is_loaded(
    four_bit_model_dir, tmp_path, stored, sentence
):
    source = write_config(four_bit_model_dir, tmp_path / "model", **stored)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")  # not even looked at
    with pytest.raises(UserError, match=sentence) as error:
        choose_quantization(source, "lora", "bf16")
    assert "\n" not in str(error.value)


def test_a_quantisation_that_can_be_undone_is_undone_and_told(tmp_path, tokenizer, caplog):
    """fp8 with one scale for each block of 128 × 128: here one for each matrix."""
    from safetensors.torch import load_file, save_file

    model = make_tiny_llama(len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    expected = {}
    for name in [name for name in weights if "_proj" in name]:
        scale = weights[name].abs().max() / 448  # the largest number of float8_e4m3fn
        packed = (weights[name] / scale).to(torch.float8_e4m3fn)
        expected[name] = packed.float() * scale
        weights |= {name: packed, name.replace(".weight", ".weight_scale_inv"): scale.reshape(1, 1)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    write_config(tmp_path, tmp_path, quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic")
    with caplog.at_level(logging.INFO):
        full, _ = build_model(str(tmp_path))
    assert "stored as fp8: dequantised while loading" in caplog.text
    for name, parameter in full.named_parameters():
        assert parameter.requires_grad and parameter.dtype == torch.float32
        if name in expected:
            torch.testing.assert_close(parameter.detach(), expected[name])
    full.save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())


def test_mxfp4_is_for_lora_not_for_qlora():
    stored = {"quant_method": "mxfp4"}
    assert check_stored(stored, "lora").dequantize is True
    assert check_stored(stored, "full").dequantize is True
    with pytest.raises(UserError, match="use method: lora, or give the 16-bit model"):
        check_stored(stored, "qlora")


@pytest.fixture
def uncompiled():
    """transformers compiles the two quantisers of BitNet, which takes most of a minute here."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.fixture(scope="module")
def bitnet_dir(tokenizer, tmp_path_factory):
    from transformers import BitNetConfig, BitNetForCausalLM

    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("bitnet")
    config = BitNetConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    BitNetForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return write_config(directory, directory, **BITNET, quantization_mode="online").name_or_path


def test_bitnet_master_weights_train_in_full_and_come_back_ternary(bitnet_dir, tmp_path, uncompiled, tokenizer):
    from transformers import Trainer

    model, _ = build_model(bitnet_dir)
    assert all(parameter.requires_grad for parameter in model.parameters())
    ids = tokenizer("Please send 12 blue pens to Anna.").input_ids
    arguments = tiny_arguments(tmp_path / "run", max_steps=8, per_device_train_batch_size=2)
    trainer = Trainer(model=model, args=arguments, train_dataset=[{"input_ids": ids, "labels": ids}] * 2)
    trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 1
    trainer.save_model(str(tmp_path / "model"))
    tokenizer.save_pretrained(tmp_path / "model")
    again, _ = build_model(str(tmp_path / "model"))
    rows = torch.tensor([ids])
    with torch.no_grad():
        # What the layer computes with has three values, ± the mean magnitude of the master weights and 0.
        layer = again.model.layers[0].mlp.up_proj
        columns = layer(torch.eye(32)).unique()
        assert len(columns) == 3 and torch.allclose(columns.abs().max(), layer.weight.abs().mean(), rtol=1e-5)
        assert torch.equal(model.eval()(rows).logits, again.eval()(rows).logits)


def test_lora_on_bitnet_master_weights_trains_and_the_merge_is_warned_of(bitnet_dir, uncompiled, caplog):
    with caplog.at_level(logging.INFO):
        model, tokenizer = build_lora_model(bitnet_dir, r=4, dtype="fp32", dropout=0.0)
    assert "bitnet, online and used as it is; what is trained on it cannot be merged into it exactly" in caplog.text
    losses = train_steps(model, tokenizer)
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("method", ["full", "partial", "lora", "qlora"])
def test_packed_bitnet_weights_do_not_train(bitnet_dir, tmp_path, method):
    for mode in ({"quantization_mode": "offline"}, {"linear_class": "bitlinear"}):
        source = write_config(bitnet_dir, tmp_path / "model", **{**BITNET, **mode})
        with pytest.raises(UserError, match=r"stored as bitnet, offline, which .* give the model's master weights"):
            choose_quantization(source, method, "bf16")


def test_a_gguf_base_trains_in_full_and_under_lora(tmp_path, tokenizer):
    file = tmp_path / "tiny.gguf"
    make_tiny_gguf(file, tokenizer)
    assert stored_quantization(find_model(str(file))) is None
    full, _ = build_model(str(file))
    assert {parameter.dtype for parameter in full.parameters()} == {torch.float32}
    assert train_steps(full, tokenizer, steps=4)[-1] < train_steps(full, tokenizer, steps=1)[0] + 1
    full.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again, _ = build_model(str(tmp_path / "saved"))
    ids = torch.tensor([[1, 5, 7]])
    assert torch.equal(full.eval()(ids).logits, again.eval()(ids).logits)
    adapted, _ = build_lora_model(str(file), r=4, dtype="fp32", dropout=0.0)
    losses = train_steps(adapted, tokenizer)
    assert losses[-1] < losses[0] - 0.05


def test_a_sixteen_bit_base_has_no_stored_quantisation(four_bit_model_dir):
    source = find_model(str(four_bit_model_dir))
    assert stored_quantization(source) is None
    assert choose_quantization(source, "full", "fp32", QuantizationSettings(load_in_8bit=True)) is None
