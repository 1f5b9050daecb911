"""Mixtures of experts on a `Tape`: transformers' grouped products over experts fused into one tensor."""

from __future__ import annotations

from collections.abc import Mapping

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.modules import Module
from hf_recipes.plan.memory.operations import FULL, activation, add, by_row, cast, multiply, product
from hf_recipes.plan.memory.projection import Arithmetic, project
from hf_recipes.plan.memory.tape import Tape, Value


def is_sparse(modules: Mapping[str, Module]) -> bool:
    """Whether a layer has experts."""
    return any("experts" in name.split(".") for name in modules)


def route(tape: Tape, x: Value, modules: Mapping[str, Module], geometry: Geometry, how: Arithmetic) -> Value:
    """The output of a layer's experts, and of the shared one where there is one."""
    routed = how.tokens * geometry.experts_per_token
    weights = _router(tape, x, modules, geometry, how)
    experts = next(module for name, module in modules.items() if name.split(".")[-1] == "experts")
    up, down = (_adapted(tape, experts, name) for name in ("gate_up_proj", "down_proj"))
    chosen = tape.operation((x,), routed * geometry.hidden_size, x.width, backward_extra=0.0)
    if up is None or down is None:
        return x
    both = _grouped(tape, chosen, up, routed * up.count / geometry.experts / geometry.hidden_size)
    half = both.count / 2
    gate = tape.operation((both,), half, both.width, kept=(both,), backward_extra=both.nbytes)
    inner = tape.operation((gate,), half, both.width, kept=(gate,), backward_extra=both.nbytes)
    out = _grouped(tape, inner, down, chosen.count)
    tape.hold(both, chosen)
    weighted = by_row(tape, out, weights)
    tape.hold(out)
    ordered = tape.operation((weighted,), weighted.count, weighted.width)
    tape.hold(weighted, chosen)
    total = tape.operation((ordered,), x.count, ordered.width)
    return (
        add(tape, cast(tape, total, x.width), _shared(tape, x, modules, how))
        if _has_shared(modules)
        else cast(tape, total, x.width)
    )


def _adapted(tape: Tape, experts: Module, name: str) -> Value | None:
    """The weight that the products see. PEFT's `ParamWrapper` adds the product of both LoRA matrices to the weights of
    all experts anew in each forward pass, so that there is a second tensor of their size, which the backward pass
    keeps."""
    weight = experts.own.get(name)
    if weight is None or "lora_A" not in experts.adapter:
        return weight
    delta = tape.operation(experts.adapter.values(), weight.count, weight.width)
    return tape.operation((delta,), weight.count, weight.width, passes=True)


def _router(tape: Tape, x: Value, modules: Mapping[str, Module], geometry: Geometry, how: Arithmetic) -> Value:
    module = next((module for name, module in modules.items() if name.split(".")[-1] in ("gate", "router")), None)
    if module is None:
        return Value(how.tokens * geometry.experts_per_token, FULL, grad=False)
    logits = project(tape, x, module, how) if "weight" in module.shapes else x
    soft = tape.operation((cast(tape, logits, FULL),), logits.count, FULL, keeps_output=True)
    return tape.operation((soft,), how.tokens * geometry.experts_per_token, FULL, keeps_output=True)


def _grouped(tape: Tape, x: Value, weight: Value, out_count: float) -> Value:
    """`torch.nn.functional.grouped_mm`, which autocast passes by: the input is cast to the weight's dtype."""
    narrow = cast(tape, x, weight.width)
    kept = [*([narrow] if weight.grad else ()), *([weight] if x.grad else ())]
    return tape.operation((narrow, weight), out_count, weight.width, kept=kept)


def _has_shared(modules: Mapping[str, Module]) -> bool:
    return any("shared_expert" in name or "shared_experts" in name for name in modules)


def _shared(tape: Tape, x: Value, modules: Mapping[str, Module], how: Arithmetic) -> Value:
    own = {name.rsplit(".", 1)[-1]: module for name, module in modules.items() if "shared_expert" in name}
    active = activation(tape, project(tape, x, own["gate_proj"], how))
    inner = multiply(tape, active, project(tape, x, own["up_proj"], how))
    return project(tape, inner, own["down_proj"], how)


__all__ = ["is_sparse", "product", "route"]
