"""The second way to a plan's memory: one step of the real model on fake tensors, beside the formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_recipes.models.stored import WHOLE_METHODS
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.memory.estimate import MemoryEstimate, estimate_memory
from hf_recipes.plan.strategy.reasons import gib
from hf_recipes.plan.trace.carry import carry_on, layers_to_trace
from hf_recipes.training.plan_job import (
    PlannedRecipe,
    load_config,
    memory_dict,
    planned_recipe,
    planning_hardware,
)
from hf_recipes.training.planning import Plan, PlanOrder


def trace_plan(plan: Plan, order: PlanOrder) -> dict[str, Any]:
    """Trace a step of the first device's settings on one rank, and hold the formula's figure for the same against it.

    Sharding is not traced: of a job on several ranks this is the step of a rank that has everything.

    Raises:
        UserError: the optimizer cannot be had.
    """
    from hf_recipes.plan.trace.losses import full_logits, supervised_only
    from hf_recipes.plan.trace.step import Trace, trace_step
    from hf_recipes.training.hidden_states import last_hidden_states
    from hf_recipes.training.loss import chunked_cross_entropy

    settings = plan.devices[0].shown.settings
    planned = planned_recipe(plan.recipe, planning_hardware(plan.devices[0].accelerator.flops, order.device))
    own_loss = settings.loss in ("chunked", "fused")

    def trace(layers: int | None = None) -> Trace:
        return trace_step(
            lambda: _build(plan, settings.weights_dtype, layers),
            settings,
            attach=lambda model: _attach(model, planned),
            loss=supervised_only(last_hidden_states, chunked_cross_entropy) if own_loss else full_logits,
            device=order.device,
        )

    counts = layers_to_trace(plan.geometry.layers, settings.checkpointing) if _is_even(planned) else None
    if counts:
        few, more = (trace(count) for count in counts)
        memory, notes = carry_on(few.memory, more.memory, counts, plan.geometry.layers), list(more.notes)
        notes.append(f"Traced with {counts[0]} and {counts[1]} layers and carried on to {plan.geometry.layers}.")
    else:
        whole = trace()
        memory, notes = whole.memory, list(whole.notes)
    formula = estimate_memory(plan.geometry, settings, Layout(), device=order.device)
    return {
        "memory": memory_dict(memory),
        "formula_active_bytes": formula.active_bytes,
        "notes": notes,
        "sentence": _sentence(memory, formula, notes),
    }


def _sentence(traced: MemoryEstimate, formula: MemoryEstimate, notes: Sequence[str]) -> str:
    apart = formula.active_bytes / traced.active_bytes - 1
    phase = traced.peak_phase.replace("_", " ")
    told = (
        f"Traced on fake tensors, one rank: {gib(traced.active_bytes)} of live tensors at the peak ({phase}); "
        f"the formula says {gib(formula.active_bytes)} ({apart:+.1%})."
    )
    return " ".join([told, *notes])


def _is_even(planned: PlannedRecipe) -> bool:
    """Whether every layer is treated alike, so that a few stand for all."""
    return not (planned.ours.method == "partial" or planned.ours.lora_rank_pattern)


def _build(plan: Plan, dtype: str, layers: int | None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    _, config = load_config(plan.recipe)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if layers is not None:
        text = config.get_text_config()
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:layers]
    attention = plan.recipe.get("attn_implementation") or "sdpa"
    return AutoModelForCausalLM.from_config(
        config,
        dtype=getattr(torch, dtype),
        attn_implementation=attention if attention != "flash_attention_2" else "sdpa",
        trust_remote_code=bool(plan.recipe.get("trust_remote_code")),
    )


def _attach(model: Any, planned: PlannedRecipe) -> Any:
    from hf_recipes.models.trained_dtype import widen_trained
    from hf_recipes.training.model import attach_method

    whole = planned.ours.method in WHOLE_METHODS
    if not whole:
        model.requires_grad_(False)
    attached = attach_method(model, planned, "CAUSAL_LM")
    if not whole:
        widen_trained(attached, under_autocast=planned.precision.autocast)
    return attached
