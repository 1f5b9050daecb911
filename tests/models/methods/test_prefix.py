from __future__ import annotations

import copy

import pytest
import torch
import transformers
from peft import PeftModel
from tiny_models import make_tiny_llama
from tiny_runs import logged, tiny_rows, train_tiny
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from hf_recipes.core.errors import UserError
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.methods.prefix import PrefixSettings, attach_prefix, generate_with_prefix
from hf_recipes.training.isolation import probe_isolation

VOCABULARY = 448
TOKENS = 5
IDS = torch.randint(3, VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(0))
# Keys and values of two layers with two heads of eight.
WIDTH = 2 * 2 * 2 * 8


def prefixed(attention="sdpa", *, spread=1.0, **settings):
    """A tiny Llama behind a random prefix, strong enough to be felt."""
    base = make_tiny_llama(VOCABULARY)
    base.set_attn_implementation(attention)
    model = attach_prefix(base, PrefixSettings(**{"num_virtual_tokens": TOKENS, **settings}))
    strengthen(model, spread)
    return model


def strengthen(model, spread=1.0):
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.prompt_encoder.parameters():
            parameter.copy_(torch.randn_like(parameter) * spread)


def logits(model, ids=IDS, **inputs):
    return model(input_ids=ids, use_cache=False, **inputs).logits


def by_hand(model, ids):
    """Logits of a Llama written out: the prefix stands before each layer's keys, unrotated, seen by every token; the
    text is causal and its positions start after the prefix."""
    llama = model.get_base_model()
    rows, length = ids.shape
    encoder = model.prompt_encoder["default"]
    prefix = encoder(torch.arange(TOKENS)[None])[0].view(TOKENS, 2, 2, 2, 8)  # token, layer, key or value, head, width
    hidden = llama.model.embed_tokens(ids)
    cos, sin = llama.model.rotary_emb(hidden, torch.arange(length)[None] + TOKENS)
    seen = torch.ones(length, TOKENS + length, dtype=torch.bool).tril(TOKENS)
    for number, layer in enumerate(llama.model.layers):
        attention, x = layer.self_attn, layer.input_layernorm(hidden)
        q, k, v = (
            projection(x).view(rows, length, -1, 8).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        own = prefix[:, number].permute(1, 2, 0, 3).unsqueeze(1).expand(-1, rows, -1, -1, -1)
        k, v = (torch.cat(pair, dim=2).repeat_interleave(2, dim=1) for pair in zip(own, (k, v), strict=True))
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~seen, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, -1)
        hidden = hidden + attention.o_proj(mixed)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return llama.lm_head(llama.model.norm(hidden))


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_call_without_mask_and_cache_is_the_model_written_out(attention, projection):
    model = prefixed(attention, prefix_projection=projection)
    expected = by_hand(model, IDS)
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-6)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = (
        torch.autograd.grad(output.square().sum(), trained, retain_graph=True) for output in (logits(model), expected)
    )
    for ours, by_hands in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, by_hands, rtol=1e-4, atol=1e-5 * by_hands.abs().max().item())
    with model.disable_adapter():
        assert (logits(model) - expected).abs().max() > 0.01  # the prefix was felt


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_d12_masks_padding_and_batch_change_no_token(attention):
    model = prefixed(attention)
    expected = logits(model)
    padded = torch.cat([IDS, torch.full((3, 6), 2)], dim=1)
    mask = (torch.arange(23) < 17).long().expand(3, -1)
    others = {
        "mask of ones": logits(model, attention_mask=torch.ones_like(IDS)),
        "positions": logits(model, position_ids=torch.arange(17).expand(3, -1)),
        "padded": logits(model, padded)[:, :17],
        "padded, with mask": logits(model, padded, attention_mask=mask)[:, :17],
        "one by one": torch.cat([logits(model, row[None]) for row in IDS]),
    }
    for name, output in others.items():
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("projection", "count"),
    [
        (False, TOKENS * WIDTH),
        # Embedding of width 16, a hidden layer of 16 and the output, each with biases.
        (True, TOKENS * 16 + (16 * 16 + 16) + (16 * WIDTH + WIDTH)),
    ],
)
def test_it_trains_exactly_its_prefix(projection, count):
    model = attach_prefix(make_tiny_llama(), PrefixSettings(TOKENS, projection))
    assert count_parameters(model)[0] == count
    assert all(p.requires_grad == name.startswith("prompt_encoder") for name, p in model.named_parameters())


@pytest.mark.parametrize("projection", [False, True])
def test_it_starts_near_the_base_with_tokens_that_differ(projection):
    base = make_tiny_llama(VOCABULARY)
    model = attach_prefix(base, PrefixSettings(20, projection))
    prefix = model.prompt_encoder["default"](torch.arange(20)[None])[0]
    assert 0 < prefix.std() < 0.1
    assert prefix.unique(dim=0).shape[0] == 20


@pytest.mark.parametrize("kept", [True, False])
def test_over_a_16_bit_base_the_prefix_is_fp32_unless_told(kept):
    model = attach_prefix(make_tiny_llama().bfloat16(), PrefixSettings(TOKENS), autocast_adapter_dtype=kept)
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    assert dtypes == {torch.float32 if kept else torch.bfloat16}
    assert logits(model).dtype == torch.bfloat16


@pytest.fixture(scope="module")
def rows():
    return tiny_rows(11)


def run(model, rows, tokenizer, directory, **arguments):
    """The trainer and its (loss, gradient norm) by step."""
    trainer = train_tiny(model, rows, tokenizer, directory, **arguments)
    return trainer, logged(trainer, "loss", "grad_norm")


@pytest.mark.parametrize("projection", [False, True])
def test_a_run_learns_saves_and_loads_on_a_fresh_base(projection, rows, tokenizer, tmp_path):
    loud = {"initializer_range": 0.2}  # a random base whose attention carries more than its usual whisper
    model = attach_prefix(make_tiny_llama(VOCABULARY, **loud), PrefixSettings(TOKENS, projection))
    trainer, logged = run(model, rows, tokenizer, tmp_path, learning_rate=0.1)
    assert logged[8][0] < logged[1][0] - 0.1, logged
    trainer.save_model(str(tmp_path / "adapter"))
    loaded = PeftModel.from_pretrained(make_tiny_llama(VOCABULARY, **loud), tmp_path / "adapter")
    assert torch.equal(logits(loaded), logits(model.eval()))


def test_d17_the_same_global_batch_by_another_accumulation_gives_the_same_losses(rows, tokenizer, tmp_path):
    runs = []
    for batch in (1, 2, 4):
        sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": 4 // batch, "max_steps": 3}
        runs.append(list(run(prefixed(), rows, tokenizer, tmp_path / str(batch), **sizes)[1].values()))
    spread = torch.tensor(runs).amax(0) - torch.tensor(runs).amin(0)
    assert spread.max() < 1e-3, spread


def test_c4_a_resumed_run_has_the_losses_of_the_unbroken_one(rows, tokenizer, tmp_path):
    def fresh():
        return attach_prefix(make_tiny_llama(VOCABULARY), PrefixSettings(TOKENS))

    torch.manual_seed(0)
    saving = {"save_strategy": "steps", "save_steps": 4}
    _, unbroken = run(fresh(), rows, tokenizer, tmp_path, **saving)
    _, resumed = run(fresh(), rows, tokenizer, tmp_path, resume=str(tmp_path / "checkpoint-4"), **saving)
    assert [resumed[step] for step in range(5, 9)] == [unbroken[step] for step in range(5, 9)]


def test_a_projected_prefix_cannot_be_resumed_for_only_its_output_is_saved(rows, tokenizer, tmp_path):
    """Why the recipe must refuse it first; when this fails, PEFT saves the MLP too and the note can go."""
    model = attach_prefix(make_tiny_llama(VOCABULARY), PrefixSettings(TOKENS, True))
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_adapter(tmp_path, "default", is_trainable=True)


def greedy_by_calls(model, ids, tokens):
    for _ in range(tokens):
        ids = torch.cat([ids, logits(model, ids)[:, -1:].argmax(-1)], dim=1)
    return ids


def generated(model, ids, tokens, **arguments):
    settings = transformers.GenerationConfig(max_new_tokens=tokens, eos_token_id=None, pad_token_id=0, **arguments)
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)


@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_uses_the_prefix(use_cache):
    model = prefixed().eval()
    prompt = IDS[:, :7]
    expected = greedy_by_calls(model, prompt, 8)
    with model.disable_adapter():
        of_base = generated(model, prompt, 8)
        assert not torch.equal(of_base, expected)
    assert torch.equal(generated(model, prompt, 8, use_cache=use_cache), expected)
    with model.disable_adapter():
        assert torch.equal(generated(model, prompt, 8), of_base)


def test_generation_from_rows_padded_on_the_left_is_that_of_each_row():
    model = prefixed().eval()
    short = IDS[:1, :4]
    rows = torch.cat([torch.cat([torch.full((1, 3), 2), short], dim=1), IDS[1:2, :7]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
    settings = transformers.GenerationConfig(max_new_tokens=8, eos_token_id=None, pad_token_id=0)
    output = model.generate(input_ids=rows, attention_mask=mask, generation_config=settings)
    assert torch.equal(output[:1, 7:], greedy_by_calls(model, short, 8)[:, 4:])
    assert torch.equal(output[1:], greedy_by_calls(model, rows[1:], 8))


def test_a_loaded_prefix_generates_once_told_to_and_a_copy_too(tmp_path):
    prefixed().save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(make_tiny_llama(VOCABULARY), tmp_path).eval()
    expected = greedy_by_calls(loaded, IDS[:, :7], 8)
    assert not torch.equal(generated(loaded, IDS[:, :7], 8), expected)  # when this fails, PEFT has been mended
    model = generate_with_prefix(generate_with_prefix(loaded))
    for of in (model, copy.deepcopy(model)):
        assert torch.equal(generated(of, IDS[:, :7], 8), expected)


def test_other_methods_are_left_as_they_are(tiny_model):
    from hf_recipes.models.methods.lora import LoraSettings, attach_lora

    model = attach_lora(tiny_model, LoraSettings())
    before = model.base_model_prepare_inputs_for_generation
    assert generate_with_prefix(model).base_model_prepare_inputs_for_generation == before


@pytest.mark.parametrize("spread", [0.02, 1.0])
def test_d14_packing_is_refused_for_the_cache_lets_samples_see_each_other(spread):
    model = prefixed(spread=spread)
    sample = IDS.flatten().tolist()[:40]
    for one_row in (False, True):
        found = probe_isolation(model, sample, one_row=one_row)
        assert not found.failure
        assert not found.isolated, found


@pytest.mark.parametrize(
    ("settings", "arguments", "sentence"),
    [
        (PrefixSettings(0), {}, "num_virtual_tokens is 0: give a whole number of 1 or more"),
        (PrefixSettings("5"), {}, "num_virtual_tokens is '5': give a whole number"),
        (PrefixSettings(2.5), {}, "num_virtual_tokens is 2.5: give a whole number"),
        (PrefixSettings(True), {}, "num_virtual_tokens is True: give a whole number"),
        (PrefixSettings(5, "no"), {}, "prefix_projection is 'no': give true or false"),
        (PrefixSettings(256), {}, "leaves no room for text in the model's 256 positions"),
        (PrefixSettings(), {"task_type": "SEQ_CLS"}, "a classifier takes no prefix: use method: lora"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, arguments, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        attach_prefix(make_tiny_llama(), settings, **arguments)
    assert "\n" not in str(error.value)


def test_t7_recomputed_activations_are_refused(tiny_model):
    tiny_model.gradient_checkpointing_enable()
    with pytest.raises(UserError, match=r"gradient_checkpointing: a prefix lives in the cache.*turn it off"):
        attach_prefix(tiny_model, PrefixSettings())


def test_a_model_without_keys_and_values_is_refused():
    config = transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(UserError, match="MambaForCausalLM takes no prefix"):
        attach_prefix(transformers.MambaForCausalLM(config), PrefixSettings())


def test_a_sliding_window_is_told(caplog):
    config = transformers.MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16,
    )
    with caplog.at_level("WARNING", logger="hf_recipes"):
        attach_prefix(transformers.MistralForCausalLM(config), PrefixSettings())
    assert "sees 16 positions back" in caplog.text
