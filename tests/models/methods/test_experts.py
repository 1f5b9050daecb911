from __future__ import annotations

import copy
import logging

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from sampled import sampled
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments, tiny_rows
from trl import SFTTrainer

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.methods.experts import (
    check_parameter_limits,
    choose_aux_loss,
    find_experts,
    lora_targets,
    set_router_training,
    tell_unquantised_experts,
)
from hf_recipes.models.methods.partial import PartialSettings, attach_partial
from hf_recipes.training.trainer import SupervisedTrainer

COMMON = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_experts_per_tok": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
FAMILIES = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8},
    "GptOss": {"num_local_experts": 4, "head_dim": 8},
    "Olmoe": {"num_experts": 4},
    "Phimoe": {"num_local_experts": 4},
    "DeepseekV3": {
        "n_routed_experts": 4,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
    },
}
ROUTERS = {
    "Mixtral": ["mlp.gate"],
    "Qwen2Moe": ["mlp.gate", "mlp.shared_expert_gate"],
    "Qwen3Moe": ["mlp.gate"],
    "GptOss": ["mlp.router"],
    "Olmoe": ["mlp.gate"],
    "Phimoe": ["mlp.router"],
    "DeepseekV3": ["mlp.gate"],
}
FUSED = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def make(family, vocab_size=512, **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        **{"vocab_size": vocab_size, **COMMON, **FAMILIES[family], **more}
    )
    return getattr(transformers, f"{family}ForCausalLM")(config)


def with_lora(model, targets, **more):
    config = LoraConfig(
        r=4,
        task_type="CAUSAL_LM",
        target_modules=targets.modules,
        target_parameters=targets.parameters,
        modules_to_save=targets.modules_to_save,
        **more,
    )
    return get_peft_model(model, config)


@pytest.fixture(scope="module")
def rows():
    return tiny_rows(440)


def run(trainer_class, model, rows, tokenizer, directory, *, mask, steps=3, resume=None, **more):
    arguments = tiny_arguments(directory, max_steps=steps, per_device_train_batch_size=4, **more)
    trainer = trainer_class(
        model=model,
        args=arguments,
        data_collator=SupervisedCollator(pad_token_id=2, return_attention_mask=mask),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, torch.tensor(
        [(log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "loss" in log]
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_and_routers_are_found_by_structure(family):
    experts = find_experts(make(family))
    layers = ("1",) if family == "DeepseekV3" else ("0", "1")  # its first layer is dense
    assert list(experts.routers) == [f"model.layers.{layer}.{name}" for layer in layers for name in ROUTERS[family]]
    assert list(experts.weights) == [f"model.layers.{layer}.{name}" for layer in layers for name in FUSED]


def test_a_dense_model_has_none_and_keeps_its_targets():
    model = make_tiny_llama(512)
    assert not any((find_experts(model).modules, find_experts(model).routers, find_experts(model).weights))
    targets = lora_targets(model, "all-linear", None, ["lm_head"])
    assert (targets.modules, targets.parameters, targets.modules_to_save) == ("all-linear", None, ["lm_head"])
    assert lora_targets(model, ["gate_proj"]).modules == ["gate_proj"]


@pytest.mark.parametrize("train", [False, True])
def test_routers_of_a_full_fine_tune_are_frozen_unless_asked_for(train, caplog):
    model = make("Mixtral")
    with caplog.at_level(logging.INFO, "hf_recipes"):
        set_router_training(model, train)
    # Two routers of 4 experts × 32.
    assert sum(p.numel() for p in model.parameters() if not p.requires_grad) == (0 if train else 2 * 4 * 32)
    assert caplog.messages == [f"2 routers are {'trained' if train else 'frozen'} ('train_router')."]


def test_routers_of_a_partial_fine_tune():
    # q and o 32·32, k and v 16·32, router 4·32, four experts of three 32·64, two norms.
    layer = 2 * 32 * 32 + 2 * 16 * 32 + 4 * 32 + 4 * 3 * 32 * 64 + 2 * 32
    assert count_parameters(attach_partial(make("Mixtral"), PartialSettings(1)))[0] == layer - 4 * 32
    assert count_parameters(attach_partial(make("Mixtral"), PartialSettings(1, train_router=True)))[0] == layer
    named = attach_partial(make("Mixtral"), PartialSettings(0, ["mlp.gate"]))  # by name: asked for
    assert count_parameters(named)[0] == 2 * 4 * 32
    block = attach_partial(make("Mixtral"), PartialSettings(0, ["layers.1.mlp"]))
    assert count_parameters(block)[0] == 4 * 3 * 32 * 64


@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_leaves_out_routers_and_experts_and_trains(family):
    """PEFT's own all-linear trains the router of Mixtral and puts LoRA on Phimoe's, whose forward then fails."""
    model = make(family)
    peft_model = with_lora(model, lora_targets(model, "all-linear"))
    trained = [name for name, p in peft_model.named_parameters() if p.requires_grad]
    assert trained and not any("expert_gate" in name or "mlp.gate." in name or "router" in name for name in trained)
    assert not any(".experts." in name for name in trained)
    ids = torch.randint(3, 500, (2, 8))
    peft_model(input_ids=ids, labels=ids).loss.backward()
    if family == "Qwen2Moe":  # not in PEFT's table, so its shared expert is reached
        assert any("shared_expert.gate_proj" in name for name in trained)


def test_linear_layers_peft_would_misread_are_named(caplog):
    model = make("DeepseekV3")
    with caplog.at_level(logging.WARNING, "hf_recipes"):
        targets = lora_targets(model, "all-linear")
    (message,) = caplog.messages
    assert "mlp.down_proj.weight, mlp.gate_proj.weight, mlp.shared_experts.down_proj.weight" in message
    assert not any("mlp" in name for name in targets.modules)
    weights = ["mlp.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"]
    peft_model = with_lora(model, lora_targets(model, ["q_b_proj"], weights))
    # Rank 4: q_b 8 → 4·16 in both layers, the dense gate 32 → 64, the shared one 32 → 16.
    assert count_parameters(peft_model)[0] == 4 * (2 * (8 + 64) + (32 + 64) + (32 + 16))


@pytest.mark.parametrize("family", FAMILIES)
def test_all_experts_and_the_router_are_trained_saved_reloaded_and_merged(family, tmp_path):
    model = make(family)
    base = copy.deepcopy(model)
    targets = lora_targets(model, [], ["all-experts"], train_router=True)
    assert (targets.parameters, targets.modules_to_save) == (FUSED, ROUTERS[family])
    peft_model = with_lora(model, targets)
    trained = {name: p for name, p in peft_model.named_parameters() if p.requires_grad}
    fused = [base.get_parameter(name) for name in find_experts(base).weights]
    # Rank 4 for each of the 4 experts: 4 · 4 · (in + out).
    adapter = sum(4 * p.shape[0] * (p.shape[1] + p.shape[2]) for p in fused)
    own_routers = sum(p.numel() for name in find_experts(base).routers for p in base.get_submodule(name).parameters())
    assert sum(p.numel() for p in trained.values()) == adapter + own_routers
    ids = torch.randint(3, 500, (2, 16))
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    losses = []
    for _ in range(6):
        loss = peft_model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    peft_model.eval().save_pretrained(tmp_path)
    with torch.no_grad():
        logits = peft_model(input_ids=ids).logits
        assert (logits - base.eval()(input_ids=ids).logits).abs().max() > 0.02
        reloaded = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
        torch.testing.assert_close(reloaded(input_ids=ids).logits, logits, rtol=0, atol=1e-6)
        torch.testing.assert_close(reloaded.merge_and_unload()(input_ids=ids).logits, logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("checkpointing", sampled([False, True], keep=[True]))
def test_c4_experts_and_router_are_resumed(checkpointing, rows, tokenizer, tmp_path):
    def go(directory, steps, resume=None, **more):
        model = make("Mixtral", len(tokenizer))
        torch.manual_seed(1)
        peft_model = with_lora(model, lora_targets(model, ["q_proj"], ["all-experts"], train_router=True))
        more |= {"router_aux_loss_coef": 0.0, "gradient_checkpointing": checkpointing, "lr_scheduler_type": "constant"}
        return run(
            SupervisedTrainer, peft_model, rows, tokenizer, directory, mask=False, steps=steps, resume=resume, **more
        )[1]

    unbroken = go(tmp_path / "whole", 9)
    go(tmp_path / "parts", 3, save_strategy="steps", save_steps=3)
    resumed = go(tmp_path / "parts", 9, str(tmp_path / "parts" / "checkpoint-3"))
    torch.testing.assert_close(resumed, unbroken, rtol=0, atol=1e-6)
    first, last = unbroken[:3, 0].mean(), unbroken[-3:, 0].mean()  # three steps see every row once
    assert last < first


@pytest.mark.parametrize(
    "family",
    ["Mixtral", pytest.param("Qwen3Moe", marks=pytest.mark.trials), pytest.param("GptOss", marks=pytest.mark.trials)],
)
@pytest.mark.parametrize("output_router_logits", [False, True])
@pytest.mark.parametrize("coefficient", sampled([None, 0.0], keep=[None]))
def test_losses_equal_trls_with_and_without_the_balancing_loss(
    family, output_router_logits, coefficient, rows, tokenizer, tmp_path
):
    """With the balancing loss batches need a mask, or padding is balanced too."""
    model = make(family, len(tokenizer), output_router_logits=output_router_logits)
    more = {"router_aux_loss_coef": coefficient}
    ours = copy.deepcopy(model)
    trainer, losses = run(SupervisedTrainer, ours, rows, tokenizer, tmp_path / "ours", mask=coefficient is None, **more)
    _, theirs = run(SFTTrainer, model, rows, tokenizer, tmp_path / "theirs", mask=True, **more)
    assert trainer.aux_loss_enabled == (coefficient is None)
    assert (losses - theirs).abs().max() < 1e-4, (losses, theirs)


def test_the_balancing_loss_is_left_out_where_routers_are_frozen(caplog):
    with caplog.at_level(logging.INFO, "hf_recipes"):
        assert choose_aux_loss(make("Mixtral"), None, router_is_trained=False) == 0.0
    assert "'router_aux_loss_coef' puts it back" in caplog.text
    assert choose_aux_loss(make("Mixtral"), None, router_is_trained=True) is None
    assert choose_aux_loss(make("Mixtral"), 0.01, router_is_trained=False) == 0.01
    assert choose_aux_loss(make("DeepseekV3"), None, router_is_trained=True) is None
    assert choose_aux_loss(make_tiny_llama(512), None, router_is_trained=False) is None
    with pytest.raises(UserError, match="LlamaForCausalLM returns no router logits to balance"):
        choose_aux_loss(make_tiny_llama(512), 0.01, router_is_trained=False)


@pytest.mark.parametrize(
    ("family", "modules", "parameters", "sentence"),
    [
        ("Mixtral", ["q_proj", "gate"], None, "'gate' is a router of MixtralForCausalLM"),
        ("Phimoe", r".*\.router", None, "is a router of PhimoeForCausalLM"),
        ("Mixtral", ["w1"], None, "PEFT reads 'w1' as the fused experts of MixtralForCausalLM: remove it, and write"),
        (
            "DeepseekV3",
            ["gate_proj", "up_proj"],
            None,
            "(for the linear layers of that name write mlp.gate_proj.weight, mlp.shared_experts.gate_proj.weight",
        ),
        ("Mixtral", None, ["mlp.expert.down_proj"], "(did you mean 'mlp.experts.down_proj'?)"),
        ("Mixtral", None, ["input_layernorm.weight"], "has 1 dimension(s)"),
        ("Qwen2Moe", ["up_proj"], ["shared_expert.up_proj.weight"], "belongs to a module of 'lora_target_modules'"),
    ],
)
def test_wrong_targets_are_one_sentence(family, modules, parameters, sentence):
    with pytest.raises(UserError) as error:
        lora_targets(make(family), modules, parameters)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_experts_and_routers_of_a_dense_model_are_refused():
    model = make_tiny_llama(512)
    for call in (
        lambda: lora_targets(model, [], ["all-experts"]),
        lambda: lora_targets(model, [], train_router=True),
        lambda: set_router_training(model, True),
    ):
        with pytest.raises(UserError, match="LlamaForCausalLM is no mixture of experts"):
            call()


def test_experts_that_are_not_fused_are_told_apart():
    model = make_tiny_llama(512)
    block = model.model.layers[0].mlp
    block.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    block.gate = torch.nn.Linear(4, 2)
    assert find_experts(model).routers == ("model.layers.0.mlp.gate",)
    with pytest.raises(UserError, match="are not fused into 3-D parameters"):
        lora_targets(model, [], ["all-experts"])


@pytest.mark.parametrize(
    ("settings", "works"),
    [
        ({}, True),
        ({"init_lora_weights": "gaussian"}, True),
        ({"dropout": 0.05}, False),
        ({"use_dora": True}, False),
        ({"init_lora_weights": "pissa"}, False),
        ({"init_lora_weights": "olora"}, False),
        ({"init_lora_weights": "orthogonal"}, False),
    ],
)
def test_limits_on_parameters_are_pefts_own(settings, works):
    """Each sentence of ours stands for an error of the PEFT installed, and what PEFT can do is let through."""
    model = make("Mixtral")
    pefts = {("lora_dropout" if key == "dropout" else key): value for key, value in settings.items()}
    if works:
        check_parameter_limits(FUSED, **settings)
        with_lora(model, lora_targets(model, [], FUSED), use_rslora=True, **pefts)
        return
    with pytest.raises(UserError):
        check_parameter_limits(FUSED, **settings)
    check_parameter_limits(None, **settings)
    with pytest.raises((ValueError, AttributeError)):
        with_lora(model, lora_targets(model, [], FUSED), **pefts)


def test_experts_left_wide_by_quantisation_are_told(tmp_path, caplog):
    make("Mixtral").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path,
        quantization_config=transformers.BitsAndBytesConfig(load_in_4bit=True),
        dtype=torch.bfloat16,
        device_map={"": "cpu"},
    )
    with caplog.at_level(logging.WARNING, "hf_recipes"):
        tell_unquantised_experts(make("Mixtral"))
        assert not caplog.messages
        tell_unquantised_experts(model)
    # 2 layers × 4 experts × 3 · 32·64 of those and 2 · (3072 + 128 + 64) + 32 + 2 · 512·32 others.
    assert f"The experts, {100 * 49152 / (49152 + 6528 + 32 + 32768):.0f} % of the parameters" in caplog.text
