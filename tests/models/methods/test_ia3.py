from __future__ import annotations

import pytest
import torch
import transformers
from peft import PeftModel
from tiny_models import make_tiny_llama
from tiny_runs import logged, tiny_rows, train_tiny

from hf_recipes.core.errors import UserError
from hf_recipes.export.merge import merge_adapter
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.methods.ia3 import IA3Settings, attach_ia3, resolve
from hf_recipes.training.isolation import probe_isolation

VOCABULARY = 448
IDS = torch.randint(3, VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(0))
# Outputs of k_proj and v_proj (two heads of eight each), inputs of down_proj; two layers.
PARAMETERS = (16 + 16 + 64) * 2


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS, use_cache=False).logits


def acting(model):
    """The layers with a vector: name's end → whether the inputs are scaled."""
    return {
        name.rsplit(".", 1)[-1]: module.is_feedforward
        for name, module in model.named_modules()
        if hasattr(module, "is_feedforward")
    }


@pytest.fixture(scope="module")
def rows():
    return tiny_rows(11)


def loud_base():
    """A random base whose layers carry more than their usual whisper, so that scaling them is felt."""
    return make_tiny_llama(VOCABULARY, initializer_range=0.2)


def run(model, rows, tokenizer, directory, **arguments):
    """The trainer and its losses by step."""
    trainer = train_tiny(model, rows, tokenizer, directory, **{"learning_rate": 0.1, **arguments})
    return trainer, logged(trainer, "loss")


def test_it_trains_exactly_its_vectors(tiny_model):
    model = attach_ia3(tiny_model, IA3Settings())
    assert count_parameters(model)[0] == PARAMETERS
    assert all(p.requires_grad == (".ia3_l." in name) for name, p in model.named_parameters())
    assert acting(model) == {"k_proj": False, "v_proj": False, "down_proj": True}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_start_is_the_base_to_the_bit_with_vectors_in_fp32(dtype, tiny_model):
    before = logits(tiny_model.to(dtype))
    model = attach_ia3(tiny_model, IA3Settings())
    assert torch.equal(logits(model), before)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.parametrize(
    ("settings", "model_type", "expected"),
    [
        (IA3Settings(), "llama", (["k_proj", "v_proj", "down_proj"], ["down_proj"])),
        (IA3Settings(), "qwen2", (["q_proj", "v_proj", "down_proj"], ["down_proj"])),
        (IA3Settings(), "gpt2", (["c_attn", "mlp.c_proj"], ["mlp.c_proj"])),
        (IA3Settings(), "unheard-of", (["k_proj", "v_proj", "down_proj"], ["down_proj"])),
        # A default that the given targets leave out is left out too.
        (IA3Settings(["k_proj"]), "llama", (["k_proj"], [])),
        (IA3Settings(["q_proj", "down_proj"]), "llama", (["q_proj", "down_proj"], ["down_proj"])),
        (IA3Settings(["k_proj", "up_proj"], ["up_proj"]), "llama", (["k_proj", "up_proj"], ["up_proj"])),
        (IA3Settings(["all-linear"]), "llama", ("all-linear", ["down_proj"])),
    ],
)
def test_names_not_given_come_from_pefts_table(settings, model_type, expected):
    assert resolve(settings, model_type) == expected


def test_an_architecture_outside_pefts_table_takes_the_common_names():
    config = transformers.SmolLM3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=2,
    )
    model = attach_ia3(transformers.SmolLM3ForCausalLM(config), IA3Settings())
    assert acting(model) == {"k_proj": False, "v_proj": False, "down_proj": True}


@pytest.mark.parametrize(
    ("settings", "scaled"),
    [
        (IA3Settings(r".*layers\.1\.mlp\.(up|down)_proj", r".*down_proj"), {"up_proj": False, "down_proj": True}),
        (IA3Settings(["v_proj"], []), {"v_proj": False}),
        (IA3Settings("q_proj"), {"q_proj": False}),
        (IA3Settings("down_proj", "down_proj"), {"down_proj": True}),
        (IA3Settings(r".*[qk]_proj"), {"q_proj": False, "k_proj": False}),
    ],
)
def test_names_may_be_given_as_a_pattern_or_a_list(settings, scaled, tiny_model):
    assert acting(attach_ia3(tiny_model, settings)) == scaled


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (IA3Settings(["k_proj", "v_prj"]), r"ia3_target_modules: 'v_prj' is no module of .*did you mean 'v_proj'"),
        (
            IA3Settings(["k_proj"], ["k_prj"]),
            r"ia3_feedforward_modules: 'k_prj' is no module of .*did you mean 'k_proj'",
        ),
        (IA3Settings(["k_proj"], ["v_proj"]), r"ia3_feedforward_modules: 'v_proj' is not among ia3_target_modules"),
        (IA3Settings([]), r"ia3_target_modules names no module: choose from down_proj, gate_proj, k_proj, o_proj"),
        (IA3Settings(""), r"ia3_target_modules: a name is empty"),
        (IA3Settings("k_prj"), r"ia3_target_modules: 'k_prj' is no module of .*did you mean 'k_proj'"),
        (IA3Settings("(k_proj"), r"ia3_target_modules: '\(k_proj' is no regular expression"),
        (
            IA3Settings(["norm"]),
            r"'model.norm' is a LlamaRMSNorm, and IA3 scales linear layers only: choose from down_",
        ),
        (
            IA3Settings(["embed_tokens"]),
            r"is a Embedding, and IA3 scales linear layers only: choose from [a-z_, ]*proj\.",
        ),
        (IA3Settings(["lm_head"]), r"ia3_target_modules: 'lm_head' takes in the output head"),
        (IA3Settings(["k_proj"], 5), r"ia3_feedforward_modules is 5: give a name or a list of names"),
        (IA3Settings(r".*k_proj", ["dwn_proj"]), r"ia3_feedforward_modules: 'dwn_proj' is no module"),
        (IA3Settings(r".*k_proj", ["down_proj"]), r"ia3_feedforward_modules: .* names none of the layers"),
    ],
)
def test_t7_names_that_match_nothing_are_told(settings, sentence, tiny_model):
    with pytest.raises(UserError, match=sentence) as error:
        attach_ia3(tiny_model, settings)
    assert "\n" not in str(error.value)


def test_a_run_learns_saves_loads_on_a_fresh_base_and_merges(rows, tokenizer, tmp_path):
    loud_base().save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = attach_ia3(base, IA3Settings())
    trainer, losses = run(model, rows, tokenizer, tmp_path / "run")
    assert losses[8] < losses[1] - 0.1, losses
    trainer.save_model(str(tmp_path / "adapter"))
    loaded = PeftModel.from_pretrained(loud_base(), tmp_path / "adapter")
    assert torch.equal(logits(loaded), logits(model))
    report = merge_adapter(tmp_path / "adapter", output=tmp_path / "merged", dtype="fp32")
    assert report.tensors_changed == report.adapter_tensors_consumed == 6  # three vectors in each of two layers
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=2e-5)


def test_c4_a_resumed_run_has_the_losses_of_the_unbroken_one(rows, tokenizer, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 4}
    _, unbroken = run(attach_ia3(loud_base(), IA3Settings()), rows, tokenizer, tmp_path, **saving)
    model = attach_ia3(loud_base(), IA3Settings())
    _, resumed = run(model, rows, tokenizer, tmp_path, resume=str(tmp_path / "checkpoint-4"), **saving)
    assert [resumed[step] for step in range(5, 9)] == [unbroken[step] for step in range(5, 9)]


def test_t7_gradient_checkpointing_changes_no_loss(rows, tokenizer, tmp_path):
    _, plain = run(attach_ia3(loud_base(), IA3Settings()), rows, tokenizer, tmp_path / "plain")
    model = attach_ia3(loud_base(), IA3Settings())
    _, recomputed = run(model, rows, tokenizer, tmp_path / "recomputed", gradient_checkpointing=True)
    assert recomputed == pytest.approx(plain, abs=1e-4)


def test_d14_packed_samples_stay_apart(tiny_model):
    assert probe_isolation(attach_ia3(tiny_model, IA3Settings()), IDS.flatten().tolist()[:40]).isolated
