"""The second way to a plan's memory: one step of the real model on fake tensors, beside the formula."""

from __future__ import annotations

from typing import Any

from hf_recipes.models.stored import WHOLE_METHODS
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.memory.estimate import estimate_memory
from hf_recipes.plan.strategy.reasons import gib
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
    from hf_recipes.plan.trace.step import trace_step
    from hf_recipes.training.hidden_states import last_hidden_states
    from hf_recipes.training.loss import chunked_cross_entropy

    settings = plan.devices[0].shown.settings
    planned = planned_recipe(plan.recipe, planning_hardware(plan.devices[0].accelerator.flops, order.device))
    own_loss = settings.loss in ("chunked", "fused")
    traced = trace_step(
        lambda: _build(plan, settings.weights_dtype),
        settings,
        attach=lambda model: _attach(model, planned),
        loss=supervised_only(last_hidden_states, chunked_cross_entropy) if own_loss else full_logits,
        device=order.device,
    )
    formula = estimate_memory(plan.geometry, settings, Layout(), device=order.device)
    apart = formula.active_bytes / traced.memory.active_bytes - 1
    return {
        "memory": memory_dict(traced.memory),
        "formula_active_bytes": formula.active_bytes,
        "notes": list(traced.notes),
        "sentence": (
            f"Traced on fake tensors, one rank: {gib(traced.memory.active_bytes)} of live tensors at the peak "
            f"({traced.memory.peak_phase.replace('_', ' ')}); the formula says {gib(formula.active_bytes)} "
            f"({apart:+.1%})."
        ),
    }


def _build(plan: Plan, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    _, config = load_config(plan.recipe)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    attention = plan.recipe.get("attn_implementation") or "sdpa"
    return AutoModelForCausalLM.from_config(
        config,
        dtype=getattr(torch, dtype),
        attn_implementation=attention if attention != "flash_attention_2" else "sdpa",
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
