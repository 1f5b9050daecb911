"""One decoder layer on a `Tape`, as transformers computes it in Llama and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.attention import attend
from hf_recipes.plan.memory.experts import is_sparse, route
from hf_recipes.plan.memory.modules import Module
from hf_recipes.plan.memory.operations import activation, add, gated, layer_norm, multiply, rms_norm, rotate
from hf_recipes.plan.memory.projection import Arithmetic, project
from hf_recipes.plan.memory.tape import Tape, Value
from hf_recipes.plan.settings import TrainingSettings


@dataclass(frozen=True)
class Layer:
    """What one layer is made of, sorted by what it does."""

    modules: Mapping[str, Module]

    def named(self, *ends: str) -> Module | None:
        """The module whose name ends in one of `ends`."""
        return next(
            (module for name, module in self.modules.items() for end in ends if f".{name}".endswith(f".{end}")), None
        )

    @property
    def norms(self) -> list[Module]:
        """Over the hidden state, in their order; not those of queries and keys."""
        return [
            module
            for name, module in self.modules.items()
            if ("norm" in name.rsplit(".", 1)[-1] or "ln_" in name) and not name.endswith(("q_norm", "k_norm"))
        ]


def decoder_layer(
    tape: Tape, x: Value, layer: Layer, geometry: Geometry, settings: TrainingSettings, how: Arithmetic
) -> Value:
    """The layer's output for hidden states `x`.

    With four norms (Gemma 2 and 3) each block's output is normed too.
    """
    norms = layer.norms
    first, second = (norms[0], norms[1 if len(norms) < 4 else 2]) if len(norms) > 1 else (None, None)
    normed = _norm(tape, x, first, geometry, how)
    attended = _attention(tape, normed, layer, geometry, settings, how)
    tape.hold(normed)
    if len(norms) >= 4:
        attended = _norm(tape, attended, norms[1], geometry, how)
    middle = add(tape, x, attended)
    tape.hold(x, attended)
    normed = _norm(tape, middle, second, geometry, how)
    out = _feed_forward(tape, normed, layer, geometry, how)
    tape.hold(normed)
    if len(norms) >= 4:
        out = _norm(tape, out, norms[3], geometry, how)
    result = add(tape, middle, out)
    tape.hold(middle, out)
    return result


def _norm(tape: Tape, x: Value, module: Module | None, geometry: Geometry, how: Arithmetic) -> Value:
    if module is not None and "bias" in module.own:
        return layer_norm(tape, x, module.weight, autocast=how.autocast)
    return rms_norm(tape, x, None if module is None else module.weight, geometry.hidden_size, fused=how.compiled)


def _attention(
    tape: Tape, x: Value, layer: Layer, geometry: Geometry, settings: TrainingSettings, how: Arithmetic
) -> Value:
    queries, keys, values = _queries_keys_values(tape, x, layer, geometry, how)
    for name in ("q_norm", "k_norm"):
        norm = layer.named(name)
        if norm is not None and name == "q_norm":
            queries = rms_norm(tape, queries, norm.weight, geometry.head_dim, fused=how.compiled)
        elif norm is not None:
            keys = rms_norm(tape, keys, norm.weight, geometry.head_dim, fused=how.compiled)
    table = x.width
    turned_queries, turned_keys = rotate(tape, queries, table), rotate(tape, keys, table)
    tape.hold(queries, keys)
    out = attend(tape, turned_queries, turned_keys, values, geometry, settings, how)
    tape.hold(turned_queries, turned_keys, values)
    last = layer.named("o_proj", "out_proj", "attn.c_proj", "attention.dense", "self_attention.dense")
    projected = out if last is None else project(tape, out, last, how)
    tape.hold(out, turned_queries, turned_keys, values)
    return projected


def _queries_keys_values(
    tape: Tape, x: Value, layer: Layer, geometry: Geometry, how: Arithmetic
) -> tuple[Value, Value, Value]:
    single = [layer.named(name) for name in ("q_proj", "k_proj", "v_proj")]
    if all(module is not None for module in single):
        queries, keys, values = (project(tape, x, module, how) for module in single if module is not None)
        return queries, keys, values
    fused = layer.named("qkv_proj", "c_attn", "query_key_value", "Wqkv", "qkv")
    width = how.autocast or x.width
    if fused is not None:
        width = project(tape, x, fused, how).width
    kv = geometry.kv_heads * geometry.head_dim
    sizes = (geometry.heads * geometry.head_dim, kv, kv)
    parts = [Value(how.tokens * size, width, grad=x.grad) for size in sizes]
    # Three views of one tensor; kept together by attention, which is the same as each on its own.
    return tuple(tape.operation((x,), part.count, width) for part in parts)  # type: ignore[return-value]


def _feed_forward(tape: Tape, x: Value, layer: Layer, geometry: Geometry, how: Arithmetic) -> Value:
    if is_sparse(layer.modules):
        return route(tape, x, layer.modules, geometry, how)
    return dense_mlp(tape, x, layer.modules, how)


def dense_mlp(tape: Tape, x: Value, modules: Mapping[str, Module], how: Arithmetic) -> Value:
    """``down(act(gate(x)) * up(x))``, or ``down(act(up(x)))`` without a gate."""
    layer = Layer(modules)
    gate, up = layer.named("gate_proj", "w1"), layer.named("up_proj", "w3")
    down = layer.named("down_proj", "w2", "fc2", "mlp.c_proj", "dense_4h_to_h", "mlp.Wo")
    fused = layer.named("gate_up_proj")
    if gate is not None and up is not None:
        inner = _gate(tape, x, gate, up, how)
    elif fused is not None:
        both = project(tape, x, fused, how)
        half = tape.operation((both,), 0.0, both.width)
        active = tape.operation((both, half), both.count / 2, both.width, kept=(both,))
        inner = tape.operation((active,), active.count, both.width, kept=(active, both), backward_extra=both.nbytes)
        tape.hold(both)
    else:
        only = layer.named("up_proj", "fc1", "c_fc", "dense_h_to_4h", "mlp.Wi")
        inner = x if only is None else activation(tape, project(tape, x, only, how))
    return inner if down is None else project(tape, inner, down, how)


def _gate(tape: Tape, x: Value, gate: Module, up: Module, how: Arithmetic) -> Value:
    if how.compiled:
        return gated(tape, project(tape, x, gate, how), project(tape, x, up, how))
    # As Python evaluates it: the activation before the second product.
    return multiply(tape, activation(tape, project(tape, x, gate, how)), project(tape, x, up, how))
