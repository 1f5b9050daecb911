from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments, tiny_rows
from trl import SFTConfig, SFTTrainer

from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.models.methods.lora import LoraSettings, attach_lora
from hf_recipes.training.checkpointing import let_selective_reach_the_base
from hf_recipes.training.trainer import SupervisedTrainer


@pytest.fixture(scope="module")
def rows():
    return tiny_rows(440)


def losses(trainer_class, model, rows, tokenizer, tmp_path, *, batch=4, accumulation=1, steps=3, **more):
    args = tiny_arguments(
        tmp_path, max_steps=steps, per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, **more
    )
    collator = SupervisedCollator(pad_token_id=2, return_attention_mask=trainer_class is SFTTrainer)
    trainer = trainer_class(
        model=model, args=args, data_collator=collator, train_dataset=rows, processing_class=tokenizer
    )
    trainer.train()
    return [(log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "loss" in log]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_losses_and_gradient_norms_equal_trls_over_training(method, rows, tokenizer, tmp_path):
    model = make_tiny_llama(len(tokenizer))
    if method == "lora":
        model = attach_lora(model, LoraSettings(r=4, alpha=8, dropout=0.0))
    ours = losses(SupervisedTrainer, copy.deepcopy(model), rows, tokenizer, tmp_path / "ours")
    theirs = losses(SFTTrainer, model, rows, tokenizer, tmp_path / "theirs")
    difference = (torch.tensor(ours) - torch.tensor(theirs)).abs()
    assert difference.max() < 1e-4, difference
    assert difference.mean() < 2e-5, difference


def test_a_save_leaves_no_card_of_trls_for_a_result_that_is_not_there_yet(rows, tokenizer, tmp_path):
    for trainer, cards in ((SFTTrainer, 1), (SupervisedTrainer, 0)):
        run = tmp_path / trainer.__name__
        losses(trainer, make_tiny_llama(len(tokenizer)), rows, tokenizer, run, save_strategy="steps", save_steps=2)
        assert (run / "checkpoint-2").is_dir()
        assert len(list(run.glob("README.md"))) == cards


def test_d17_the_same_global_batch_by_another_accumulation_gives_the_same_losses(rows, tokenizer, tmp_path):
    model = make_tiny_llama(len(tokenizer))
    runs = [
        losses(
            SupervisedTrainer,
            copy.deepcopy(model),
            rows,
            tokenizer,
            tmp_path / str(batch),
            batch=batch,
            accumulation=4 // batch,
            train_sampling_strategy="random",
        )
        for batch in (1, 2, 4)
    ]
    spread = torch.tensor(runs).amax(0) - torch.tensor(runs).amin(0)
    assert spread.max() < 1e-3, spread


def test_a_model_that_caps_its_logits_takes_trls_own_loss(rows, tokenizer, tmp_path):
    """Gemma-2's soft cap comes between head and loss; passing hidden states through it would be wrong."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        final_logit_softcapping=5.0,
    )
    model = Gemma2ForCausalLM(config)
    args = SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", max_length=None)
    args.dataset_kwargs = {"skip_prepare_dataset": True}
    trainer = SupervisedTrainer(
        model=model,
        args=args,
        train_dataset=rows,
        data_collator=SupervisedCollator(pad_token_id=2, return_attention_mask=True),
        processing_class=tokenizer,
    )
    batch = trainer.data_collator([rows[0], rows[1]])
    loss = trainer.compute_loss(trainer.model, dict(batch))
    expected = model(**batch).loss
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("method", "dtype"), [("lora", torch.bfloat16), ("full", torch.float32)])
def test_under_bf16_autocast_the_loss_is_trls_too(method, dtype, rows, tokenizer, tmp_path):
    """The default wherever the hardware has bf16: a bf16 base with fp32 LoRA, or fp32 weights computed in bf16."""
    model = make_tiny_llama(len(tokenizer)).to(dtype)
    if method == "lora":
        model = attach_lora(model, LoraSettings(r=4, alpha=8, dropout=0.0))
    ours = losses(SupervisedTrainer, copy.deepcopy(model), rows, tokenizer, tmp_path / "ours", bf16=True)
    theirs = losses(SFTTrainer, model, rows, tokenizer, tmp_path / "theirs", bf16=True)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-2, atol=1e-2)


def test_selective_checkpointing_reaches_the_base_under_peft(rows, tokenizer, tmp_path):
    """TRL wraps the PEFT model's method, the Trainer calls the base's: `ValueError: Unexpected keyword arguments`."""
    kwargs = {"selective": True}
    found = {}
    for name, checkpointing in (("plain", None), ("selective", kwargs)):
        model = attach_lora(make_tiny_llama(len(tokenizer)), LoraSettings(r=4, dropout=0.0))
        let_selective_reach_the_base(model, checkpointing)
        more = {"gradient_checkpointing": checkpointing is not None, "gradient_checkpointing_kwargs": checkpointing}
        found[name] = losses(SupervisedTrainer, model, rows, tokenizer, tmp_path / name, **more)
    torch.testing.assert_close(torch.tensor(found["selective"]), torch.tensor(found["plain"]))
