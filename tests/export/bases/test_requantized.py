from __future__ import annotations

import pytest
import torch
from export_helpers import change_json, make_gpt2, save_base
from tiny_models import make_tiny_llama
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, BitsAndBytesConfig

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import TensorEntry
from hf_recipes.export.bases import requantized
from hf_recipes.export.bases.base_values import with_base_values
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.bases.requantized import Requantized, requantize
from hf_recipes.export.bases.trained_quantization import TrainedQuantization
from hf_recipes.export.bases.trained_values import with_trained_values

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
QLORA_RUN = {
    "recipe": {"method": "qlora", "use_bnb_nested_quant": True},
    "precision": {"dtype": "bfloat16"},
    "base_model": {"name_or_path": "some/model"},
}


def config_of(kind, double=False, skip=None):
    """As `models/quantized.py` gives it to `from_pretrained`."""
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skip)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=double,
        llm_int8_skip_modules=skip,
    )


def trained_values(directory, config, dtype, model_class=AutoModelForCausalLM):
    """What training computed with, by transformers' own way."""
    model = model_class.from_pretrained(directory, quantization_config=config, dtype=dtype)
    return model.dequantize().state_dict()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """An untied base in fp32. k_proj has 800 weights: its last block is half full."""
    shape = {"hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 4, "num_key_value_heads": 2}
    return save_base(tmp_path_factory.mktemp("base") / "original", make_tiny_llama(64, tied=False, **shape))


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("kind", "double"), [("nf4", False), ("nf4", True), ("fp4", False), ("fp4", True)])
def test_m1_requantised_values_are_those_of_training_to_the_bit(original, monkeypatch, kind, double, dtype):
    monkeypatch.setattr(requantized, "_CHUNK", 256)  # several chunks, the last one of another size
    base = with_trained_values(read_base(original), TrainedQuantization(kind, dtype, double), "CAUSAL_LM")
    live = trained_values(original, config_of(kind, double), DTYPES[dtype])
    quantised = {name for name, tensor in base.tensors.items() if isinstance(tensor, Requantized)}
    assert len(quantised) == 14 and "lm_head.weight" not in quantised
    for name, tensor in base.tensors.items():
        value = tensor.load()
        assert value.dtype == (DTYPES[dtype] if name in quantised else torch.float32)
        assert torch.equal(value.to(DTYPES[dtype]), live[name]), name
        if name in quantised:
            assert not torch.equal(value.float(), tensor.original.load()), f"{name} was not quantised"


@pytest.mark.parametrize("double", [False, True])
def test_m1_scales_of_many_blocks_are_quantised_as_one(monkeypatch, double):
    """19 500 weights have 305 scales: more than the 256 that double quantisation takes as one block."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    monkeypatch.setattr(requantized, "_CHUNK", 6400)
    weight = torch.randn(130, 150, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 9, 130)[:, None]
    golden = dequantize_4bit(*quantize_4bit(weight, compress_statistics=double, quant_type="nf4"))
    assert torch.equal(requantize(weight, TrainedQuantization("nf4", "float32", double)), golden)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_8_bit_training_saw_these_values(original, monkeypatch, dtype):
    monkeypatch.setattr(requantized, "_CHUNK", 256)
    base = with_trained_values(read_base(original), TrainedQuantization("int8", dtype), "CAUSAL_LM")
    live = trained_values(original, config_of("int8"), DTYPES[dtype])
    assert sum(isinstance(tensor, Requantized) for tensor in base.tensors.values()) == 14
    assert all(torch.equal(tensor.load().to(DTYPES[dtype]), live[name]) for name, tensor in base.tensors.items())


def test_layers_that_keep_inputs_first_are_turned_around_and_back(tmp_path):
    directory = save_base(tmp_path / "gpt2", make_gpt2(width=64))
    base = with_trained_values(read_base(directory), TrainedQuantization("nf4", "float32", True), "CAUSAL_LM")
    live = trained_values(directory, config_of("nf4", True), torch.float32)
    turned = [name for name, tensor in base.tensors.items() if isinstance(tensor, Requantized)]
    assert len(turned) == 8  # c_attn, attn.c_proj, c_fc, mlp.c_proj in two layers
    for name in turned:
        tensor = base.tensors[name]
        assert tensor.transposed and tensor.load().shape == tensor.shape
        assert torch.equal(tensor.load().T, live[name]), name


def test_a_classifier_keeps_its_head_and_quantises_the_rest(tmp_path, original):
    base = with_trained_values(read_base(original), TrainedQuantization("nf4", "float32"), "SEQ_CLS")
    live = trained_values(original, config_of("nf4"), torch.float32, AutoModelForSequenceClassification)
    quantised = {name for name, tensor in base.tensors.items() if isinstance(tensor, Requantized)}
    assert len(quantised) == 14
    assert all(torch.equal(base.tensors[name].load(), live[name]) for name in quantised)


def test_modules_that_training_skipped_are_left(original):
    settings = TrainedQuantization("nf4", "float32", skip=("q_proj", "lm_head"))
    base = with_trained_values(read_base(original), settings, "CAUSAL_LM")
    live = trained_values(original, config_of("nf4", skip=["q_proj", "lm_head"]), torch.float32)
    assert isinstance(base.tensors["model.layers.0.self_attn.q_proj.weight"], TensorEntry)
    assert all(torch.equal(tensor.load(), live[name]) for name, tensor in base.tensors.items())


def test_the_run_says_how_its_base_was_quantised(original):
    base, name = with_base_values(read_base(original), "dequantized", adapter_config={}, run=QLORA_RUN)
    assert name == "dequantized (nf4,double,bf16)"
    settings = {tensor.settings for tensor in base.tensors.values() if isinstance(tensor, Requantized)}
    assert settings == {TrainedQuantization("nf4", "bfloat16", True)}


def test_original_values_need_no_record(original):
    base = read_base(original)
    assert with_base_values(base, "original", adapter_config={}, run={}) == (base, "original")


@pytest.mark.parametrize(
    ("values", "run", "quantization", "match"),
    [
        ("dequantized", {}, None, "Nothing beside the adapter says .*--quantization nf4,double,bf16"),
        ("dequantized", {"recipe": {"method": "lora"}}, None, "method: lora, on the base as it is"),
        ("dequantized", {}, "nf4,double", "'nf4,double' does not say"),
        ("dequantized", {}, "nf4,fp4,bf16", "does not say"),
        ("dequantized", {}, "nf5,bf16", "'nf5' is not a dtype"),
        ("dequantized", {}, "int8,double,bf16", "int8 has no double quantisation"),
        ("original", {}, "nf4,bf16", "acts with --base-values dequantized only"),
        ("dequantised", {}, None, "'dequantised' is neither original nor dequantized"),
    ],
)
def test_what_is_not_known_is_asked_for_in_a_sentence(original, values, run, quantization, match):
    with pytest.raises(UserError, match=match) as error:
        with_base_values(read_base(original), values, adapter_config={}, run=run, quantization=quantization)
    assert "\n" not in str(error.value)


def test_a_recipe_says_nothing_of_a_base_that_was_stored_quantised(tmp_path, original):
    packed = save_base(tmp_path / "packed")
    change_json(packed / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    run = {**QLORA_RUN, "base_model": {"name_or_path": str(packed)}}
    with pytest.raises(UserError, match="which is stored quantised: merge into that one"):
        with_base_values(read_base(original), "dequantized", adapter_config={}, run=run)


def test_a_model_without_a_class_is_refused(tmp_path, original):
    change_json(save_base(tmp_path / "own") / "config.json", architectures=["OwnModel"], model_type="own")
    with pytest.raises(UserError, match=r"Which layers of .* cannot be told .*--base-values original"):
        with_trained_values(read_base(tmp_path / "own"), TrainedQuantization("nf4", "float32"), None)
