"""Advice is relative to the run's own settings."""

from __future__ import annotations

from dataclasses import replace

from hf_recipes.callbacks.advice import RunFacts, for_bad_weights, for_non_finite, for_overfitting

LORA = RunFacts(learning_rate=2e-4, max_grad_norm=1.0, full_fine_tune=False, fp16=False)


def test_a_rate_that_nobody_trains_with_is_not_halved():
    text = for_non_finite(replace(LORA, learning_rate=1000.0))
    assert "halve" not in text
    assert "lower learning_rate by orders of magnitude (1000; usual are 2e-05 for full and 2e-04 for LoRA)" in text


def test_nan_advice_halves_the_runs_own_rate():
    text = for_non_finite(LORA)
    assert "halve learning_rate (0.0002 → 0.0001)" in text
    assert "max_grad_norm (1 → 0.5)" in text
    assert "rows" in text
    assert "1e-05" not in text  # below 1e-5 is for full fine-tunes only
    assert "fp16" not in text


def test_full_fine_tunes_are_sent_below_1e_5():
    text = for_non_finite(replace(LORA, learning_rate=5e-5, full_fine_tune=True))
    assert "halve learning_rate (5e-05 → 2.5e-05), and go below 1e-05" in text


def test_fp16_is_sent_to_bf16_and_no_clip_gets_one():
    text = for_non_finite(replace(LORA, fp16=True, max_grad_norm=0.0))
    assert "bf16: true" in text
    assert "max_grad_norm: 1.0" in text


def test_overfitting_advice_names_only_keys_the_method_has():
    assert "lora_dropout" in for_overfitting(full_fine_tune=False)
    assert "lora" not in for_overfitting(full_fine_tune=True)


def test_advice_on_a_bad_step_fits_the_case():
    facts = LORA
    assert "max_grad_norm" in for_non_finite(facts)
    assert "max_grad_norm" not in for_non_finite(facts, loss=True)  # clipping comes after the loss
    assert "learning_rate" not in for_non_finite(facts, rate_lowered=True)
    assert "check the base" in for_non_finite(facts, first_step=True)
    assert "another copy of the base" in for_bad_weights(trained=False)
    assert "resume from a checkpoint" in for_bad_weights(trained=True)
