"""A linear layer with whatever quantisation and adapter is on it."""

from __future__ import annotations

from dataclasses import dataclass

from hf_recipes.plan.memory.modules import Module, out_features
from hf_recipes.plan.memory.operations import (
    HALF,
    activation,
    add,
    by_channel,
    cast,
    dropout,
    product,
    scale,
)
from hf_recipes.plan.memory.tape import COPIES, Tape, Value


@dataclass(frozen=True)
class Arithmetic:
    """How a step computes.

    Attributes:
        autocast: bytes of an element of what autocast casts to; None without autocast.
        lora_dropout: of adapters.
        device: ``cuda`` or ``cpu``.
        tokens, rows: of a micro-batch.
        compiled: pointwise operations are fused.
        keeps_input: products with 4-bit weights keep their input.
    """

    autocast: int | None
    lora_dropout: float
    device: str
    tokens: float
    rows: float
    compiled: bool = False
    keeps_input: bool = False


def project(tape: Tape, x: Value, module: Module, how: Arithmetic) -> Value:
    """The layer's output for `x`."""
    before = module.adapter.get("ia3_l") if _scales_input(module) else None
    if before is not None:
        x = cast(tape, by_channel(tape, x, before), x.width)
    result = _base(tape, x, module, how)
    if "lora_magnitude_vector" in module.adapter:
        result = _dora(tape, x, result, module, how)
    elif "lora_A" in module.adapter:
        result = _lora(tape, x, result, module, how)
    elif "bottleneck_down" in module.adapter:
        result = _bottleneck(tape, result, module, how)
    elif "ia3_l" in module.adapter and before is None:
        result = cast(tape, by_channel(tape, result, module.adapter["ia3_l"]), result.width)
    return result


def _scales_input(module: Module) -> bool:
    shape = module.adapter_shapes.get("ia3_l")  # (1, in) before feedforward layers, (out, 1) behind others
    return shape is not None and shape[0] == 1 and len(shape) == 2


def _base(tape: Tape, x: Value, module: Module, how: Arithmetic) -> Value:
    if module.quantized is None:
        return product(tape, x, module.weight, out_features(module), autocast=how.autocast, bias=module.bias)
    compute = how.autocast or HALF
    narrow = cast(tape, x, compute)
    matrix = module.weight.count * compute
    out = out_features(module)
    # LLM.int8() keeps its input, four bits the packed weight alone; both unpack the matrix for each product.
    kept = (narrow,) if module.quantized == "int8" or how.keeps_input else ()
    result = tape.operation(
        (narrow,),
        narrow.count / (module.weight.count / out) * out,
        compute,
        kept=kept,
        forward_extra=matrix,
        backward_extra=matrix,
    )
    return cast(tape, result, x.width)


def _lora(tape: Tape, x: Value, result: Value, module: Module, how: Arithmetic) -> Value:
    """PEFT's `lora.Linear`: the input is cast to the adapter's dtype, and back under autocast; over a quantised layer
    the result is cloned, and the input left as it is under a GPU's autocast, the only one that PEFT asks for there."""
    down, up = module.adapter["lora_A"], module.adapter["lora_B"]
    rank = module.adapter_shapes["lora_A"][0]
    width = result.width
    if module.quantized:
        result = tape.operation((result,), result.count, width, passes=True)
    is_left = module.quantized and how.autocast and how.device == "cuda"
    wide = x if is_left else cast(tape, x, down.width)
    inner = product(tape, dropout(tape, wide, how.lora_dropout, device=how.device), down, rank, autocast=how.autocast)
    outer = product(tape, inner, up, module.adapter_shapes["lora_B"][0], autocast=how.autocast)
    added = scale(tape, outer)
    total = add(tape, result, added)
    tape.hold(wide, result)
    return cast(tape, total, width)


def _dora(tape: Tape, x: Value, result: Value, module: Module, how: Arithmetic) -> Value:
    """PEFT's `DoraLinearLayer`: each forward pass puts the adapted weight together to take the norm of its rows."""
    down, up = module.adapter["lora_A"], module.adapter["lora_B"]
    magnitude, rank = module.adapter["lora_magnitude_vector"], module.adapter_shapes["lora_A"][0]
    width = result.width
    wide = cast(tape, x, down.width)
    dropped = dropout(tape, wide, how.lora_dropout, device=how.device)
    count, in_features = module.weight.count, float(module.adapter_shapes["lora_A"][1])
    compute = how.autocast or down.width
    # An identity through both matrices, what comes out in two dtypes, the weight in the input's, their sum.
    eye = in_features**2 * (down.width + (compute if compute != down.width else 0))
    sums = count * (compute + (wide.width if compute != wide.width else 0) + 3 * wide.width)
    tape.momentary(eye + sums)
    weight_left = count * wide.width * (1 if module.weight.width == wide.width and not module.quantized else 2)
    locals_held = tape.operation((), weight_left + eye - in_features**2 * down.width, 1)
    inner = product(tape, dropped, down, rank, autocast=how.autocast)
    outer = product(tape, inner, up, module.adapter_shapes["lora_B"][0], autocast=how.autocast)
    if dropped is not wide:
        copy = tape.operation((), count, compute, kind=COPIES)
        narrow = cast(tape, dropped, compute)
        base = tape.operation((narrow,), result.count, compute, kept=(copy,))
        tape.hold(copy)
    else:
        base = result
    first = by_channel(tape, base, magnitude)
    second = scale(tape, by_channel(tape, outer, magnitude))
    extra = add(tape, first, second)
    tape.hold(locals_held, wide, dropped, outer, base)
    return cast(tape, add(tape, result, extra), width)


def _bottleneck(tape: Tape, result: Value, module: Module, how: Arithmetic) -> Value:
    """Our `BottleneckLayer`: ``y + dropout(up(activation(down(y))))``."""
    down, up = module.adapter["bottleneck_down"], module.adapter["bottleneck_up"]
    size = module.adapter_shapes["bottleneck_down"][0]
    wide = cast(tape, result, down.width)
    inner = product(tape, wide, down, size, autocast=how.autocast, bias=module.adapter.get("bottleneck_down.bias"))
    outer = product(
        tape,
        activation(tape, inner),
        up,
        module.adapter_shapes["bottleneck_up"][0],
        autocast=how.autocast,
        bias=module.adapter.get("bottleneck_up.bias"),
    )
    tape.hold(wide)
    return cast(tape, add(tape, result, outer), result.width)
