from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from peft.optimizers import create_loraplus_optimizer
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments
from transformers import AutoModelForCausalLM

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.export.merge import merge_adapter
from hf_recipes.models.methods.lora import LoraSettings, attach_lora
from hf_recipes.models.methods.loraplus import loraplus_optimizer
from hf_recipes.training.trainer import SupervisedTrainer

RATIO = 16


def settings(**more):
    return LoraSettings(**{"r": 4, "alpha": 8, "dropout": 0.0, **more})


def make_rows(count=12):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, 440, (6 + 2 * index,), generator=generator).tolist() for index in range(count)]
    return Dataset.from_list([{"input_ids": ids, "labels": ids} for ids in rows])


def make_trainer(model, tokenizer, directory, *, ratio=RATIO, **more):
    arguments = tiny_arguments(
        directory,
        **{"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "weight_decay": 0.1, **more},
    )
    optimizer = loraplus_optimizer(model, arguments, ratio) if ratio else None
    return SupervisedTrainer(
        model=model,
        args=arguments,
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=make_rows(),
        processing_class=tokenizer,
        optimizers=(optimizer, None),
    )


def history(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def rates(model, optimizer):
    """Learning rate and weight decay of each trained parameter, by name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_b_moves_ratio_times_as_far_as_a_in_real_steps(tokenizer, tmp_path):
    """Adam's first step moves an entry by lr · g / (|g| + eps), which is the learning rate wherever |g| ≫ eps = 1e-8.

    A has no gradient at the first step, for B is zero; so it is looked at after the second, with constant rates. Its
    Adam has seen gradients 0 and g: m = 0.1·g / (1 − 0.9²) and v = 0.001·g² / (1 − 0.999²), so it moves by
    lr · (0.1 / 0.19) / √(0.001 / 0.001999) = 0.7442 · lr.
    """
    model = attach_lora(make_tiny_llama(len(tokenizer)), settings(target_modules=["q_proj"]))
    moved = {}
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for step in (1, 2):
        again = attach_lora(make_tiny_llama(len(tokenizer)), settings(target_modules=["q_proj"]))
        again.load_state_dict(before, strict=False)
        more = {"max_steps": step, "lr_scheduler_type": "constant", "weight_decay": 0.0, "max_grad_norm": 0.0}
        make_trainer(again, tokenizer, tmp_path / str(step), **more).train()
        for name, parameter in again.named_parameters():
            moved[step, name] = (parameter.detach() - before[name]).abs().median().item()
    a, b = (next(name for name in before if f".lora_{half}." in name) for half in "AB")
    assert moved[1, b] == pytest.approx(RATIO * 1e-3, rel=1e-2)
    assert moved[1, a] == 0
    assert moved[2, a] == pytest.approx(0.7442 * 1e-3, rel=2e-2)


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "paged_adamw_8bit"])
def test_class_settings_and_weight_decay_are_the_trainers_own(optim, tokenizer, tmp_path):
    more = {"use_dora": True, "modules_to_save": ["model.norm", "lm_head"]}
    model = attach_lora(make_tiny_llama(len(tokenizer), tied=False), settings(**more))
    trainer = make_trainer(model, tokenizer, tmp_path, ratio=None, optim=optim, adam_beta2=0.95)
    plain, ours = trainer.create_optimizer(), loraplus_optimizer(model, trainer.args, RATIO)
    assert type(ours) is type(plain)
    for name in set(plain.defaults) - {"lr", "weight_decay"}:
        assert ours.defaults[name] == plain.defaults[name], name
    expected = {
        name: (rate * RATIO if ".lora_B." in name else rate, decay)
        for name, (rate, decay) in rates(model, plain).items()
    }
    assert {decay for _, decay in expected.values()} == {0.1, 0.0}
    assert rates(model, ours) == expected


def test_on_plain_lora_the_rates_are_pefts(tokenizer, tmp_path):
    model = attach_lora(make_tiny_llama(len(tokenizer)), settings())
    arguments = tiny_arguments(tmp_path, learning_rate=1e-3, weight_decay=0.1)
    theirs = create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=RATIO, loraplus_weight_decay=0.1
    )
    assert rates(model, loraplus_optimizer(model, arguments, RATIO)) == rates(model, theirs)


def test_ratio_one_is_plain_lora(tokenizer, tmp_path):
    runs = []
    for ratio in (1, None):
        model = attach_lora(make_tiny_llama(len(tokenizer)), settings())
        trainer = make_trainer(model, tokenizer, tmp_path / str(ratio), ratio=ratio)
        trainer.train()
        runs.append(history(trainer))
    assert runs[0] == pytest.approx(runs[1], abs=1e-6)


def test_trained_resumed_reloaded_and_merged(tiny_model_dir, tokenizer, tmp_path):
    def fresh():
        torch.manual_seed(0)
        return attach_lora(AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32), settings())

    def logits(model):
        with torch.no_grad():
            return model.eval()(torch.arange(3, 43)[None]).logits

    keep = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "cosine", "warmup_steps": 1}
    trainer = make_trainer(fresh(), tokenizer, tmp_path / "run", **keep)
    trainer.train()
    losses = history(trainer)
    assert losses[-1] < losses[0]
    assert len(trainer.optimizer.param_groups) == 2

    resumed = make_trainer(fresh(), tokenizer, tmp_path / "again", **keep)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert history(resumed) == losses
    slow, fast = (group["lr"] for group in resumed.optimizer.param_groups)
    assert fast == pytest.approx(RATIO * slow)

    trainer.save_model(str(tmp_path / "adapter"))
    live = logits(trainer.model)
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(base, tmp_path / "adapter")), live, rtol=0, atol=2e-6)
    merge_adapter(tmp_path / "adapter", base=tiny_model_dir, output=tmp_path / "merged", dtype="fp32")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    torch.testing.assert_close(logits(merged), live, rtol=0, atol=5e-6)


@pytest.mark.parametrize("ratio", [0, -1, True, "16", float("nan")])
def test_a_ratio_that_is_none_is_refused(ratio, tokenizer, tmp_path):
    model = attach_lora(make_tiny_llama(len(tokenizer)), settings())
    with pytest.raises(UserError, match=r"loraplus_lr_ratio: .* is no ratio: give a number above 0"):
        loraplus_optimizer(model, tiny_arguments(tmp_path), ratio)


def test_a_model_without_lora_and_an_optimizer_with_groups_of_its_own_are_refused(tokenizer, tmp_path):
    with pytest.raises(UserError, match="no LoRA B matrix to train"):
        loraplus_optimizer(make_tiny_llama(len(tokenizer)), tiny_arguments(tmp_path), RATIO)
    model = attach_lora(make_tiny_llama(len(tokenizer)), settings())
    arguments = tiny_arguments(tmp_path, optim="galore_adamw")
    with pytest.raises(UserError, match="does not go with optim: galore_adamw"):
        loraplus_optimizer(model, arguments, RATIO)
