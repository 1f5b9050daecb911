from __future__ import annotations

import copy
import json
import math
import warnings

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from sampled import sampled
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments
from transformers import AutoModelForCausalLM
from two_ranks import run_two_ranks

from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.export.merge import merge_adapter
from hf_recipes.models.methods.lora import LoraSettings, attach_lora, resumed_settings
from hf_recipes.models.methods.lora_start import (
    initial_adapter,
    load_initial,
    make_plain_lora,
    save_as_plain_lora,
    save_initial,
    start_from_data,
)
from hf_recipes.models.quantized import freeze_quantized, nf4_config
from hf_recipes.training.resume import check_resume
from hf_recipes.training.trainer import SupervisedTrainer

IDS = torch.arange(3, 43)[None]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
STARTS = {
    "pissa": {"init_lora_weights": "pissa"},
    "pissa_niter": {"init_lora_weights": "pissa_niter_4"},
    "olora": {"init_lora_weights": "olora", "target_modules": ALL},
    "pissa of a DoRA with a module trained in full": {
        "init_lora_weights": "pissa",
        "use_dora": True,
        "modules_to_save": ["model.norm"],
    },
    "pissa with rsLoRA and patterns, which PEFT cannot convert": {
        "init_lora_weights": "pissa",
        "use_rslora": True,
        "rank_pattern": {"layers.1.*q_proj": 2},
        "alpha_pattern": {"v_proj": 5},
    },
    "pissa beside an embedding": {"init_lora_weights": "pissa", "target_modules": ["q_proj", "embed_tokens"]},
    "orthogonal": {"init_lora_weights": "orthogonal"},
}


def settings(**more):
    return LoraSettings(**{"r": 4, "alpha": 8, "dropout": 0.0, **more})


def load(directory, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)


def make_rows(count=12, seed=0):
    """Rows of unequal length whose first third is not trained."""
    generator = torch.Generator().manual_seed(seed)
    data = []
    for index in range(count):
        ids = torch.randint(3, 440, (6 + 2 * (index % 12),), generator=generator).tolist()
        data.append({"input_ids": ids, "labels": [-100] * (len(ids) // 3) + ids[len(ids) // 3 :]})
    return data


def batches_of(rows, size=12):
    collate = SupervisedCollator(pad_token_id=2)
    return [collate(rows[start : start + size]) for start in range(0, len(rows), size)]


def train(model, tokenizer, directory, *, resume=None):
    """Four steps with a verified checkpoint after the second; their losses."""
    arguments = tiny_arguments(
        directory, max_steps=4, per_device_train_batch_size=4, save_strategy="steps", save_steps=2
    )
    keeper = CheckpointKeeper()
    trainer = SupervisedTrainer(
        model=model,
        args=arguments,
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=Dataset.from_list(make_rows()),
        processing_class=tokenizer,
        callbacks=[keeper],
    )
    trainer.train(resume_from_checkpoint=resume and str(resume))
    assert keeper.failed is None
    model.eval()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits.float()


def effective(layer):
    """W as the model acts with it: base plus update."""
    a, b = layer.lora_A["default"].weight.float(), layer.lora_B["default"].weight.float()
    return layer.base_layer.weight.float() + layer.scaling["default"] * b @ a


def first_query(model):
    return model.get_base_model().model.layers[0].self_attn.q_proj


@pytest.mark.parametrize(
    "start", sampled(STARTS, keep=["pissa with rsLoRA and patterns, which PEFT cannot convert", "olora"])
)
def test_a_start_leaves_the_model_as_it_was_trains_resumes_and_ends_as_plain_lora(
    start, tiny_model_dir, tokenizer, tmp_path
):
    start = STARTS[start]
    changes = start["init_lora_weights"] != "orthogonal"
    model = attach_lora(load(tiny_model_dir), settings(**start))
    torch.testing.assert_close(logits(model), logits(load(tiny_model_dir)), rtol=0, atol=2e-6)
    initial = initial_adapter(model)
    if changes:
        save_initial(initial, tmp_path)
    start_state = copy.deepcopy(model.state_dict())
    losses = train(model, tokenizer, tmp_path / "run")
    assert losses[-1] < losses[0]

    again = attach_lora(load(tiny_model_dir), settings(**start), initial=load_initial(tmp_path))
    if changes:  # to the bit, save the embedding's halves, which the checkpoint brings
        state = {name: tensor for name, tensor in again.state_dict().items() if "lora_embedding" not in name}
        assert all(torch.equal(tensor, start_state[name]) for name, tensor in state.items())
    assert train(again, tokenizer, tmp_path / "resumed", resume=tmp_path / "run" / "checkpoint-2") == losses

    result = tmp_path / "adapter"
    if changes:
        save_as_plain_lora(model, initial, result)
    else:
        model.save_pretrained(result)
    assert verify_checkpoint(result, "reload", base=tiny_model_dir).ok
    reloaded = PeftModel.from_pretrained(load(tiny_model_dir), result)
    torch.testing.assert_close(logits(reloaded), logits(model), rtol=0, atol=5e-6)
    merge_adapter(result, base=tiny_model_dir, output=tmp_path / "merged", dtype="fp32")
    torch.testing.assert_close(logits(load(tmp_path / "merged")), logits(model), rtol=0, atol=5e-6)
    assert (logits(model) - logits(load(tiny_model_dir))).abs().max() > 1e-2


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_over_fp32_start_and_conversion_are_pefts_own(start, tiny_model_dir, tokenizer, tmp_path):
    """The same matrices and residual, and, after training, the same plain LoRA as PEFT's conversion writes."""
    ours = attach_lora(load(tiny_model_dir), settings(init_lora_weights=start))
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=start, task_type="CAUSAL_LM"
    )
    theirs = get_peft_model(load(tiny_model_dir), config)
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-5, atol=1e-7)
    theirs.save_pretrained(tmp_path / "start")
    train(theirs, tokenizer, tmp_path / "run")
    initial = load_file(tmp_path / "start" / "adapter_model.safetensors")
    save_as_plain_lora(theirs, initial, tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs", path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    written = [load_file(tmp_path / each / "adapter_model.safetensors") for each in ("ours", "theirs")]
    assert written[0].keys() == written[1].keys()
    assert all(torch.equal(written[0][name], written[1][name]) for name in written[0])
    configs = [json.loads((tmp_path / each / "adapter_config.json").read_text()) for each in ("ours", "theirs")]
    for key in ("r", "lora_alpha", "init_lora_weights"):
        assert configs[0][key] == configs[1][key], key


@pytest.mark.parametrize("start", ["pissa", "olora", "orthogonal"])
def test_over_bf16_base_and_adapter_add_up_to_the_base_within_one_rounding(start, tiny_model_dir, tmp_path):
    """PEFT rounds A₀ and B₀ after taking their product out, which moves the weight further than one rounding can."""
    base = load(tiny_model_dir, torch.bfloat16)
    model = attach_lora(load(tiny_model_dir, torch.bfloat16), settings(init_lora_weights=start, target_modules=ALL))
    config = LoraConfig(r=4, lora_alpha=8, target_modules=ALL, init_lora_weights=start, task_type="CAUSAL_LM")
    theirs = get_peft_model(load(tiny_model_dir, torch.bfloat16), config)
    before = base.model.layers[0].self_attn.q_proj.weight.float()
    residual = first_query(model).base_layer.weight.float()
    # One rounding to bf16 (8 significant bits) moves a value by 2⁻⁹ of itself at most, up to the next power of two;
    # 1e-8 is for the product in fp32.
    bound = residual.abs() * 2.0**-8 + 1e-8
    assert ((effective(first_query(model)) - before).abs() <= bound).all()
    assert not ((effective(first_query(theirs)) - before).abs() <= bound).all()
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


def test_merged_over_bf16_equals_the_live_model_within_the_rounding_of_the_merge(tiny_model_dir, tokenizer, tmp_path):
    base = tmp_path / "base"
    load(tiny_model_dir, torch.bfloat16).save_pretrained(base)
    model = attach_lora(load(base, torch.bfloat16), settings(init_lora_weights="pissa"))
    initial = initial_adapter(model)
    train(model, tokenizer, tmp_path / "run")
    save_as_plain_lora(model, initial, tmp_path / "adapter")
    merge_adapter(tmp_path / "adapter", base=base, output=tmp_path / "merged", dtype="bf16")
    merged = load(tmp_path / "merged", torch.float32).model.layers[0].self_attn.q_proj.weight
    live = effective(first_query(model))
    # Two roundings: that of the residual and that of the merged weight, each 2⁻⁸ of what is rounded at most.
    residual = first_query(model).base_layer.weight.float()
    assert ((merged - live).abs() <= (residual.abs() + merged.abs()) * 2.0**-8 + 1e-7).all()


def test_the_randomised_pissa_is_the_same_in_every_run_and_draws_from_no_ones_random_state(tiny_model_dir):
    torch.manual_seed(1)
    first = initial_adapter(attach_lora(load(tiny_model_dir), settings(init_lora_weights="pissa_niter_4")))
    after = torch.rand(1)
    torch.manual_seed(1)
    attach_lora(load(tiny_model_dir), settings(init_lora_weights="default"))
    assert torch.equal(torch.rand(1), after)
    torch.manual_seed(2)
    second = initial_adapter(attach_lora(load(tiny_model_dir), settings(init_lora_weights="pissa_niter_4")))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_gpt2s_transposed_weights(start, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64)).save_pretrained(tmp_path)
    base = load(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT says that it sets fan_in_fan_out itself
        model = attach_lora(load(tmp_path), settings(init_lora_weights=start, target_modules=["c_attn"]))
    layer = model.get_base_model().transformer.h[0].attn.c_attn
    assert not torch.allclose(layer.base_layer.weight, base.transformer.h[0].attn.c_attn.weight, atol=1e-3)
    torch.testing.assert_close(logits(model), logits(base), rtol=0, atol=2e-6)


def test_pissa_takes_the_largest_singular_values(tiny_model_dir):
    model = attach_lora(load(tiny_model_dir), settings(init_lora_weights="pissa"))
    before = torch.linalg.svdvals(load(tiny_model_dir).model.layers[0].self_attn.q_proj.weight)
    residual = torch.linalg.svdvals(first_query(model).base_layer.weight)
    # 32 values: the four largest are gone, the others are as they were.
    torch.testing.assert_close(residual[:28], before[4:], rtol=1e-4, atol=1e-5)
    assert residual[28:].max() < 1e-5


def test_a_quantised_base_is_refused_but_takes_the_orthogonal_start(four_bit_model_dir):
    def quantised():
        model = AutoModelForCausalLM.from_pretrained(
            four_bit_model_dir, quantization_config=nf4_config("float32"), device_map={"": "cpu"}
        )
        return freeze_quantized(model)

    for start in ("pissa", "olora"):
        with pytest.raises(UserError, match=rf"'{start}' takes its start out .* 'model.layers.0.*' is quantised"):
            attach_lora(quantised(), settings(init_lora_weights=start))
    model = attach_lora(quantised(), settings(init_lora_weights="orthogonal"))
    torch.testing.assert_close(logits(model), logits(quantised()), rtol=0, atol=2e-6)


def test_weights_that_are_shared_sharded_or_too_small_are_refused_and_left_alone(tiny_model_dir):
    tied = load(tiny_model_dir)
    first, second = (layer.self_attn.q_proj for layer in tied.model.layers)
    second.weight = first.weight
    before = first.weight.clone()
    with pytest.raises(UserError, match=r"those of '.*0.self_attn.q_proj' are shared \(.*1.self_attn.q_proj\)"):
        attach_lora(tied, settings(init_lora_weights="pissa", target_modules=["q_proj"]))
    assert torch.equal(before, first.weight)
    with pytest.raises(UserError, match=r"'model.layers.0.self_attn.v_proj' is 16 × 32, too small for rank 20"):
        attach_lora(load(tiny_model_dir), settings(init_lora_weights="olora", r=20))
    with torch.device("meta"):
        empty = make_tiny_llama()
    with pytest.raises(UserError, match="quantised or sharded"):
        attach_lora(empty, settings(init_lora_weights="pissa"))


def test_conversion_refuses_what_it_would_spoil(tiny_model_dir, tmp_path):
    model = attach_lora(load(tiny_model_dir), settings(init_lora_weights="pissa"))
    initial = initial_adapter(model)
    model.save_pretrained(tmp_path)
    other = attach_lora(load(tiny_model_dir), settings(init_lora_weights="pissa", r=2))
    with pytest.raises(UserError, match="does not fit"):
        make_plain_lora(tmp_path, initial_adapter(other))
    with pytest.raises(UserError, match="does not fit"):
        attach_lora(load(tiny_model_dir), settings(init_lora_weights="pissa"), initial=initial_adapter(other))
    with pytest.raises(UserError, match="changed the base it was trained on"):
        merge_adapter(tmp_path, base=tiny_model_dir, output=tmp_path / "merged", dtype="fp32")
    make_plain_lora(tmp_path, initial)
    with pytest.raises(UserError, match="is plain LoRA already"):
        make_plain_lora(tmp_path, initial)
    (tmp_path / "trainer_state.json").write_text("{}")
    with pytest.raises(UserError, match="is a checkpoint"):
        make_plain_lora(tmp_path, initial)


def test_a_damaged_start_is_one_sentence(tmp_path):
    assert load_initial(tmp_path) is None
    (tmp_path / "initial_adapter.safetensors").write_bytes(b"not tensors")
    with pytest.raises(UserError, match="is damaged"):
        load_initial(tmp_path)


# ---- EVA


def eva(directory, batches, dtype=torch.float32, **more):
    model = attach_lora(
        load(directory, dtype), settings(init_lora_weights="eva", **{"target_modules": ALL, "r": 2, **more})
    )
    start_from_data(model, batches)
    return model


@pytest.mark.parametrize("more", sampled([{}, {"use_dora": True}, {"use_rslora": True}], keep=[{"use_dora": True}]))
def test_eva_shares_out_ranks_trains_resumes_without_data_and_merges(more, tiny_model_dir, tokenizer, tmp_path):
    model = eva(tiny_model_dir, batches_of(make_rows(48)), **more)
    torch.testing.assert_close(logits(model), logits(load(tiny_model_dir)), rtol=0, atol=2e-6)
    layers = {name: each for name, each in model.named_modules() if hasattr(each, "lora_A")}
    ranks = [layer.r["default"] for layer in layers.values()]
    # 14 modules of rank 2 were asked for. Those of equal inputs (q, k, v; gate, up) may exchange ranks, none is lost.
    assert sum(ranks) == 28
    assert len(set(ranks)) > 1
    if not more:
        assert {layer.scaling["default"] for layer in layers.values()} == {8 / 2}
    if "use_rslora" in more:
        assert all(layer.scaling["default"] == 8 / math.sqrt(layer.r["default"]) for layer in layers.values())

    losses = train(model, tokenizer, tmp_path / "run")
    assert losses[-1] < losses[0]
    checkpoint = tmp_path / "run" / "checkpoint-2"
    asked = settings(init_lora_weights="eva", target_modules=ALL, r=2, **more)
    again = attach_lora(load(tiny_model_dir), resumed_settings(asked, checkpoint))
    check_resume(checkpoint, again, planned_steps=4)
    assert train(again, tokenizer, tmp_path / "resumed", resume=checkpoint) == losses

    model.save_pretrained(tmp_path / "adapter")
    reloaded = PeftModel.from_pretrained(load(tiny_model_dir), tmp_path / "adapter")
    torch.testing.assert_close(logits(reloaded), logits(model), rtol=0, atol=2e-6)
    merge_adapter(tmp_path / "adapter", base=tiny_model_dir, output=tmp_path / "merged", dtype="fp32")
    torch.testing.assert_close(logits(load(tmp_path / "merged")), logits(model), rtol=0, atol=5e-6)


def test_eva_starts_in_the_principal_directions_of_supervised_inputs_alone(tiny_model_dir):
    """Against a PCA done at once: the first direction of what the first query projection reads, padding left out."""
    batches = batches_of(make_rows(48))
    model = eva(tiny_model_dir, batches, target_modules=["q_proj"], r=2)
    base, seen = load(tiny_model_dir), []
    base.model.layers[0].self_attn.q_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        for batch in batches:
            base(batch["input_ids"])
    inputs = torch.cat([each[batch["labels"] != -100] for each, batch in zip(seen, batches, strict=True)])
    _, _, directions = torch.linalg.svd(inputs - inputs.mean(0), full_matrices=False)
    a = first_query(model).lora_A["default"].weight.detach()
    torch.testing.assert_close(a @ a.T, torch.eye(len(a)), rtol=0, atol=1e-4)
    # EVA stops when consecutive estimates agree to a cosine of 0.99.
    assert abs(a[0] @ directions[0]) > 0.95
    wider = [
        {
            "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 40), value=9),
            "labels": torch.nn.functional.pad(batch["labels"], (0, 40), value=-100),
        }
        for batch in batches
    ]
    padded = first_query(eva(tiny_model_dir, wider, target_modules=["q_proj"], r=2)).lora_A["default"].weight
    torch.testing.assert_close(padded.detach(), a, rtol=0, atol=1e-4)


def test_eva_over_bf16_keeps_every_trained_matrix_in_fp32(tiny_model_dir):
    model = eva(tiny_model_dir, batches_of(make_rows(48)), torch.bfloat16)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert model.get_base_model().dtype == torch.bfloat16


def test_eva_says_what_it_lacks(tiny_model_dir, caplog):
    with pytest.raises(UserError, match="at least 8 supervised tokens, twice the largest rank, and none of 1 has them"):
        eva(tiny_model_dir, batches_of(make_rows(1)), r=4)
    with pytest.raises(UserError, match=r"chooses among 40 directions, .* 'model.layers.0.*' has 32 inputs"):
        eva(tiny_model_dir, batches_of(make_rows(48)), r=20, target_modules=["q_proj"])
    with caplog.at_level("INFO"):
        eva(tiny_model_dir, [*batches_of(make_rows(1)), *batches_of(make_rows(48))], r=4)
    assert "1 of 5 batches are too short and left out" in caplog.text


def test_eva_that_does_not_settle_ends(tiny_model_dir, monkeypatch):
    monkeypatch.setattr("hf_recipes.models.methods.lora_start._EVA_BATCHES", 2)
    with pytest.raises(UserError, match="has not settled after 2 batches"):
        eva(tiny_model_dir, batches_of(make_rows(48)))


@pytest.mark.trials
@pytest.mark.slow
def test_eva_starts_alike_on_two_ranks_that_saw_other_batches(tiny_model_dir, tmp_path):
    first, second = run_two_ranks(__file__, tmp_path, str(tiny_model_dir))
    assert first == second


def _rank(directory, model_directory):
    import os

    from two_ranks import leave_group

    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    model = eva(model_directory, batches_of(make_rows(48, seed=rank)))
    sums = {name: [list(p.shape), p.double().sum().item()] for name, p in model.named_parameters() if ".lora_A" in name}
    leave_group(directory, {"sums": sums, "ranks": model.peft_config["default"].rank_pattern})


if __name__ == "__main__":
    import sys

    _rank(*sys.argv[1:])
