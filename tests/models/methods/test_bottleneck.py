from __future__ import annotations

import importlib
import shutil
import sys

import pytest
import torch
from peft import PeftConfig, PeftModel, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from tiny_models import make_tiny_llama
from tiny_runs import logged, tiny_rows, train_tiny

from hf_recipes.core.errors import UserError
from hf_recipes.models.base import load_base
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.methods.bottleneck import BottleneckSettings, attach_bottleneck
from hf_recipes.models.methods.bottleneck_layer import BottleneckConfig, find_output_projections
from hf_recipes.models.quantized import freeze_quantized, nf4_config
from hf_recipes.models.source import find_model

# One adapter of width m behind d = 32 features: down d·m + m, up m·d + d. Behind o_proj and down_proj of two layers.
PARAMETERS_OF_WIDTH_4 = (32 * 4 + 4 + 4 * 32 + 32) * 2 * 2
IDS = torch.arange(3, 43).reshape(2, 20)


def logits(model):
    model.eval()
    with torch.no_grad():
        return model(IDS).logits


def randomise(model, seed=0):
    """Give every trainable tensor some values, so that the adapter does something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def four_bit_base(directory):
    source = find_model(str(directory), None)
    return freeze_quantized(load_base(source, dtype="bfloat16", quantization=nf4_config("bfloat16")))


@pytest.fixture(scope="module")
def rows():
    """Few words: what a small adapter on a random base can learn in eight steps."""
    return tiny_rows(11)


def run(model, rows, tokenizer, directory, **arguments):
    """The trainer and its losses by step."""
    trainer = train_tiny(model, rows, tokenizer, directory, **arguments)
    return trainer, logged(trainer, "loss")


def test_it_trains_exactly_its_own_layers(tiny_model):
    model = attach_bottleneck(tiny_model, BottleneckSettings(size=4))
    assert count_parameters(model)[0] == PARAMETERS_OF_WIDTH_4
    assert all(p.requires_grad == (".bottleneck_" in name) for name, p in model.named_parameters())


def test_the_mlp_alone_takes_half(tiny_model):
    model = attach_bottleneck(tiny_model, BottleneckSettings(size=4, target_modules=["down_proj"]))
    assert count_parameters(model)[0] == PARAMETERS_OF_WIDTH_4 // 2


@pytest.mark.parametrize("targets", ["all-linear", ["all-linear"]])
def test_all_linear_is_every_projection_but_the_head(targets, tiny_model, tmp_path):
    model = randomise(attach_bottleneck(tiny_model, BottleneckSettings(size=4, target_modules=targets)))
    followed = [name for name, module in model.named_modules() if hasattr(module, "bottleneck_down")]
    assert len(followed) == 7 * 2
    assert not any("lm_head" in name for name in followed)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(make_tiny_llama(tiny_model.config.vocab_size), tmp_path)
    assert torch.equal(logits(loaded), logits(model))


def test_a_plain_text_is_a_name_if_there_is_one(tiny_model):
    model = attach_bottleneck(tiny_model, BottleneckSettings(size=4, target_modules="down_proj"))
    assert count_parameters(model)[0] == PARAMETERS_OF_WIDTH_4 // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_start_is_the_base_to_the_bit(dtype, tiny_model):
    before = logits(tiny_model.to(dtype))
    model = attach_bottleneck(tiny_model, BottleneckSettings(size=4))
    assert torch.equal(logits(model), before)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


def test_the_adapter_takes_the_dtype_of_the_base_when_told(tiny_model):
    model = attach_bottleneck(tiny_model.to(torch.bfloat16), BottleneckSettings(size=4), autocast_adapter_dtype=False)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert logits(randomise(model)).dtype == torch.bfloat16


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_it_follows_its_formula(activation, tiny_model):
    model = randomise(attach_bottleneck(tiny_model, BottleneckSettings(size=4, activation=activation)))
    layer = model.base_model.model.model.layers[0].mlp.down_proj
    down, up = layer.bottleneck_down["default"], layer.bottleneck_up["default"]
    x = torch.randn(3, 5, 64)
    y = x @ layer.base_layer.weight.T
    inner = getattr(torch.nn.functional, activation)(y @ down.weight.T + down.bias)
    torch.testing.assert_close(layer(x), y + inner @ up.weight.T + up.bias)


def test_dropout_acts_in_training_only(tiny_model):
    model = randomise(attach_bottleneck(tiny_model, BottleneckSettings(size=4, dropout=0.5)))
    layer = model.base_model.model.model.layers[0].mlp.down_proj
    x = torch.randn(3, 64)
    assert torch.equal(layer.eval()(x), layer(x))
    dropped = layer.train()(x) == layer.base_layer(x)
    assert 0.2 < dropped.float().mean() < 0.8


def test_a_run_learns_saves_and_loads_on_a_fresh_base(rows, tokenizer, tmp_path):
    model = attach_bottleneck(make_tiny_llama(len(tokenizer)), BottleneckSettings(size=8))
    trainer, losses = run(model, rows, tokenizer, tmp_path)
    assert losses[8] < losses[1] - 0.1, losses
    trainer.save_model(str(tmp_path / "adapter"))
    loaded = PeftModel.from_pretrained(make_tiny_llama(len(tokenizer)), tmp_path / "adapter")
    assert torch.equal(logits(loaded), logits(model))
    assert not any(p.requires_grad for p in loaded.parameters())
    with loaded.disable_adapter():
        assert torch.equal(logits(loaded), logits(make_tiny_llama(len(tokenizer))))


@pytest.mark.trials
def test_c4_a_resumed_run_has_the_losses_of_the_unbroken_one(rows, tokenizer, tmp_path):
    """With dropout: the random state must come back too."""
    settings = BottleneckSettings(size=8, dropout=0.1)
    _, unbroken = run(attach_bottleneck(make_tiny_llama(), settings), rows, tokenizer, tmp_path / "unbroken")
    saving = {"save_strategy": "steps", "save_steps": 4}
    run(attach_bottleneck(make_tiny_llama(), settings), rows, tokenizer, tmp_path / "broken", **saving)
    shutil.rmtree(tmp_path / "broken" / "checkpoint-8")
    model = attach_bottleneck(make_tiny_llama(), settings)
    _, resumed = run(
        model, rows, tokenizer, tmp_path / "broken", resume=str(tmp_path / "broken" / "checkpoint-4"), **saving
    )
    assert [resumed[step] for step in range(5, 9)] == [unbroken[step] for step in range(5, 9)]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_t7_gradient_checkpointing_changes_no_loss(use_reentrant, rows, tokenizer, tmp_path):
    settings = BottleneckSettings(size=8)
    _, plain = run(attach_bottleneck(make_tiny_llama(), settings), rows, tokenizer, tmp_path / "plain")
    _, checkpointed = run(
        attach_bottleneck(make_tiny_llama(), settings),
        rows,
        tokenizer,
        tmp_path / "checkpointed",
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": use_reentrant},
    )
    assert plain == checkpointed


def test_a_4_bit_base_starts_equal_learns_and_loads_again(four_bit_model_dir, rows, tokenizer, tmp_path):
    base = four_bit_base(four_bit_model_dir)
    before = logits(base)
    model = attach_bottleneck(base, BottleneckSettings(size=8))
    assert torch.equal(logits(model), before)
    assert count_parameters(model)[0] == (2 * 64 * 8 + 8 + 64) * 4
    trainer, losses = run(model, rows, tokenizer, tmp_path)
    assert losses[8] < losses[1] - 0.1, losses
    trainer.save_model(str(tmp_path / "adapter"))
    loaded = PeftModel.from_pretrained(four_bit_base(four_bit_model_dir), tmp_path / "adapter")
    # TRL trains adapters over a quantised base in bf16, PEFT loads them into fp32: compare in one dtype.
    model.base_model._cast_adapter_dtype("default")
    assert torch.equal(logits(loaded), logits(model))


def test_adapters_of_unlike_width_are_switched_stacked_and_deleted(tiny_model):
    base = logits(tiny_model)
    model = attach_bottleneck(tiny_model, BottleneckSettings(size=4))
    first = logits(randomise(model))
    model.add_adapter("other", BottleneckSettings(size=6, activation="silu").to_peft("CAUSAL_LM"))
    assert torch.equal(logits(model), first)  # added, not active
    model.set_adapter("other")
    assert torch.equal(logits(model), base)  # fresh, so still the base
    assert {name.split(".")[-2] for name, p in model.named_parameters() if p.requires_grad} == {"other"}
    second = logits(randomise(model, seed=1))
    assert not torch.allclose(second, first)

    model.base_model.set_adapter(["default", "other"])
    layer = model.base_model.model.model.layers[1].self_attn.o_proj
    y = layer.base_layer(x := torch.randn(3, 32))
    for name, activation in (("default", torch.relu), ("other", torch.nn.functional.silu)):
        y = y + layer.bottleneck_up[name](activation(layer.bottleneck_down[name](y)))
    torch.testing.assert_close(layer(x), y)

    model.set_adapter("default")
    assert torch.equal(logits(model), first)
    model.delete_adapter("other")
    assert torch.equal(logits(model), first)
    assert not any(".other." in name for name, _ in model.named_parameters())


def test_transformers_own_adapter_door_reads_it(tiny_model, tmp_path):
    """`model.load_adapter` of transformers, without a `PeftModel`, reads the type's name by another way."""
    model = randomise(attach_bottleneck(tiny_model, BottleneckSettings(size=4)))
    model.save_pretrained(tmp_path)
    plain = make_tiny_llama(tiny_model.config.vocab_size)
    plain.load_adapter(str(tmp_path))
    assert torch.equal(logits(plain), logits(model))


def test_it_serves_classification_whose_new_head_is_saved_with_it(tmp_path):
    from transformers import AutoModelForSequenceClassification

    config = make_tiny_llama().config
    config.num_labels = 3
    torch.manual_seed(0)
    base = AutoModelForSequenceClassification.from_config(config)
    model = randomise(attach_bottleneck(base, BottleneckSettings(size=4), task_type="SEQ_CLS"))
    assert count_parameters(model)[0] == PARAMETERS_OF_WIDTH_4 + 3 * 32
    model.save_pretrained(tmp_path)
    torch.manual_seed(0)
    loaded = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_config(config), tmp_path)
    assert torch.equal(logits(loaded), logits(model))


def test_what_did_not_import_it_says_what_it_lacks_and_importing_it_is_enough(tiny_model, tmp_path, monkeypatch):
    attach_bottleneck(tiny_model, BottleneckSettings(size=4)).save_pretrained(tmp_path)
    module = "hf_recipes.models.methods.bottleneck_layer"
    for mapping in (PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING):
        monkeypatch.delitem(mapping, "HF_RECIPES_BOTTLENECK")
    monkeypatch.delitem(sys.modules, module)
    with pytest.raises(KeyError, match="HF_RECIPES_BOTTLENECK"):
        PeftConfig.from_pretrained(tmp_path)
    importlib.import_module(module)
    loaded = PeftModel.from_pretrained(make_tiny_llama(tiny_model.config.vocab_size), tmp_path)
    assert loaded.peft_config["default"].adapter_size == 4


def test_it_is_never_merged(tiny_model):
    model = attach_bottleneck(tiny_model, BottleneckSettings(size=4))
    for merge in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(UserError, match=r"^A bottleneck adapter cannot be merged, because it is not linear"):
            merge()
    assert type(model.unload().model.layers[0].mlp.down_proj) is torch.nn.Linear


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"size": 0}, "adapter_size is 0: give a whole number of 1 or more"),
        ({"size": "8"}, "adapter_size is '8': give a whole number"),
        ({"size": 2.5}, "adapter_size is 2.5: give a whole number"),
        ({"size": True}, "adapter_size is True: give a whole number"),
        ({"activation": 2.5}, "adapter_activation '2.5' is not known: choose from"),
        ({"activation": ["relu"]}, "is not known"),
        ({"activation": "ReLU"}, r"adapter_activation 'ReLU' is not known \(did you mean 'relu'\?\)"),
        ({"dropout": "0.1"}, "adapter_dropout is '0.1': give a probability"),
        ({"target_modules": []}, "adapter_target_modules names no module: choose from down_proj, gate_proj"),
        ({"target_modules": ""}, "adapter_target_modules: a name is empty"),
        ({"target_modules": ["lm_head"]}, "adapter_target_modules: 'lm_head' takes in the output head"),
        ({"target_modules": ["embed_tokens"]}, "'model.embed_tokens' is a Embedding, and a bottleneck adapter follows"),
        ({"target_modules": "(o_proj"}, "is no regular expression"),
        ({"modules_to_save": ["nrm"]}, "modules_to_save: 'nrm' is no module"),
        ({"activation": "tanh"}, "adapter_activation 'tanh' is not known: choose from relu, gelu, silu"),
        ({"dropout": 1.0}, "adapter_dropout is 1.0: give a probability"),
        ({"target_modules": ["o_prj"]}, r"adapter_target_modules: 'o_prj' is no module of .* \(did you mean 'o_proj'"),
        ({"target_modules": ["mlp"]}, r"'model\.layers\.0\.mlp' is a LlamaMLP, and a bottleneck adapter follows"),
    ],
)
def test_t7_wrong_settings_are_told_in_one_sentence(settings, sentence, tiny_model):
    with pytest.raises(UserError, match=sentence):
        attach_bottleneck(tiny_model, BottleneckSettings(**settings))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("llama", {"self_attn.o_proj", "mlp.down_proj"}),
        ("phi", {"self_attn.dense", "mlp.fc2"}),
        ("gpt2", {"attn.c_proj", "mlp.c_proj"}),
        ("gpt_neox", {"attention.dense", "mlp.dense_4h_to_h"}),
        ("bloom", {"self_attention.dense", "mlp.dense_4h_to_h"}),
        ("gptj", {"attn.out_proj", "mlp.fc_out"}),
        ("gpt_neo", {"attention.out_proj", "mlp.c_proj"}),
        ("opt", {"self_attn.out_proj", "0.fc2"}),
        ("starcoder2", {"self_attn.o_proj", "mlp.c_proj"}),
        ("bert", {"output.dense"}),
        ("modernbert-decoder", {"attn.Wo", "mlp.Wo"}),
        ("lfm2", {"self_attn.out_proj", "feed_forward.w2"}),
    ],
)
def test_the_output_projections_are_found_by_architecture(kind, expected):
    model = make_on_meta(kind)
    ends = tuple(f".{end}" for end in find_output_projections(model))
    matched = [name for name, _ in model.named_modules() if name.endswith(ends)]
    assert {".".join(name.split(".")[-2:]) for name in matched} == expected


def make_on_meta(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    layers = 4 if kind == "lfm2" else 1  # its first layers have no attention
    small = {"num_layers": layers, "attention_types": [[["global"], layers]]} if kind == "gpt_neo" else {}
    config = AutoConfig.for_model(kind, **(small or {"num_hidden_layers": layers}))
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def test_gpt2s_transposed_layers_are_followed_too():
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=32))
    before = logits(base)
    model = get_peft_model(base, BottleneckConfig(adapter_size=4, task_type="CAUSAL_LM"))
    assert count_parameters(model)[0] == PARAMETERS_OF_WIDTH_4
    assert torch.equal(logits(model), before)
    assert not torch.equal(logits(randomise(model)), before)


def test_fused_experts_are_left_without_and_that_is_told(caplog):
    caplog.set_level("WARNING", logger="hf_recipes")
    assert find_output_projections(make_on_meta("mixtral")) == ["o_proj"]
    assert "No output projection of the MLP was found in MixtralForCausalLM" in caplog.text


def test_an_unknown_architecture_is_refused_with_its_names():
    with pytest.raises(UserError, match=r"known in MambaForCausalLM: give adapter_target_modules, out of .*out_proj"):
        find_output_projections(make_on_meta("mamba"))
