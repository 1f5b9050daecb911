"""What to do about an alarm, in recipe keys and relative to the run's own settings. Plain text from plain data."""

from __future__ import annotations

from dataclasses import dataclass

FULL_FINE_TUNE_FLOOR = 1e-5
FULL_FINE_TUNE_USUAL = 1e-3  # above it, it is another optimizer or another model than the guides speak of


# Nobody's rate of an optimizer that scales its steps, as all of Adam's kin do: halving it helps nobody.
RATE_BEYOND_USE = 0.1


@dataclass(frozen=True)
class RunFacts:
    """The settings that advice refers to. `max_grad_norm` is the user's (0: no clipping)."""

    learning_rate: float
    max_grad_norm: float
    full_fine_tune: bool
    fp16: bool


def lower_learning_rate(facts: RunFacts) -> str:
    """Halve the run's own rate, or say that no halving helps; "below 1e-5" is said to full fine-tunes only."""
    if facts.learning_rate > RATE_BEYOND_USE:
        return (
            f"lower learning_rate by orders of magnitude ({facts.learning_rate:g}; usual are 2e-05 for full and 2e-04 "
            "for LoRA) and start anew: steps so large have ruined the weights already"
        )
    half = facts.learning_rate / 2
    text = f"halve learning_rate ({facts.learning_rate:g} → {half:g})"
    if facts.full_fine_tune and FULL_FINE_TUNE_FLOOR < half <= FULL_FINE_TUNE_USUAL:
        text += ", and go below 1e-05 if it comes again"
    return text


def tighter_clip(facts: RunFacts) -> str:
    """Half the clip, or a first one."""
    if facts.max_grad_norm <= 0:
        return "clip gradients (max_grad_norm: 1.0)"
    return f"lower max_grad_norm ({facts.max_grad_norm:g} → {facts.max_grad_norm / 2:g})"


def for_non_finite(facts: RunFacts, *, loss: bool = False, rate_lowered: bool = False, first_step: bool = False) -> str:
    """After a NaN or an infinity (domain knowledge: lower lr, clip, check data; fp16 → bf16 or loss scaling).

    Args:
        loss: the loss itself was not finite, so clipping gradients would not have helped.
        rate_lowered: the learning rate has been lowered just now.
        first_step: no update was made yet, so it is the data or the weights as loaded.
    """
    parts = ["look at the rows of that batch"]
    if first_step:
        parts.append("check the base: its weights are as they were loaded")
    elif not rate_lowered:
        parts.append(lower_learning_rate(facts))
        if not loss:
            parts.append(tighter_clip(facts))
    if facts.fp16:
        parts.insert(0, "train in bf16 where the hardware has it (bf16: true), since fp16 overflows above 65504")
    return "What to do: " + "; ".join(parts) + "."


def for_bad_weights(trained: bool) -> str:
    """When weights are not finite already: trained ones, or those of the base."""
    if trained:
        return "What to do: resume from a checkpoint before this step, with half the learning_rate."
    return "What to do: take another copy of the base model; what is trained here did not cause it."


def for_spike(facts: RunFacts) -> str:
    """After a gradient norm far above the run's band, or a jump to a new level."""
    return (
        f"If it comes again: {lower_learning_rate(facts)}; raise warmup_steps (to 0.05); {tighter_clip(facts)}; "
        "look at the batch for rows of another kind."
    )


def for_vanishing() -> str:
    """After a gradient norm far below the run's band."""
    return (
        "If it stays: check that the labels are not all masked (hf-recipes inspect), that the learning rate has not "
        "decayed to nothing, and that the loss is not already at its floor."
    )


def for_stuck_gradient(facts: RunFacts) -> str:
    """After a gradient norm that does not change by a bit."""
    return (
        "Either every step sees the same rows and the weights do not move "
        f"(learning_rate {facts.learning_rate:g} times the schedule's factor is too small for their dtype), or old "
        "gradients are used again: look at the learning rate in the logs and at the rows (hf-recipes inspect)."
    )


def for_overfitting(full_fine_tune: bool) -> str:
    """After eval loss turned while train loss fell."""
    knobs = "raise weight_decay, lower learning_rate" if full_fine_tune else "raise lora_dropout, lower lora_r"
    return (
        f"What to do: more data; {knobs}; fewer num_train_epochs; watch.overfit_stop: true ends a run here, and "
        "load_best_model_at_end: true ends it with the weights of the best step."
    )


def for_nothing_trainable() -> str:
    """When no parameter takes a gradient."""
    return (
        "Check that lora_target_modules name modules of this model, and that nothing froze the parameters after the "
        "method was applied."
    )


def for_zero_gradient() -> str:
    """When parameters are trainable but the first gradient is zero or absent."""
    return (
        "Check that the labels are not all masked (hf-recipes inspect), that lora_target_modules are used by the "
        "forward pass, and, with gradient_checkpointing, that model.enable_input_require_grads() was called."
    )
