"""The operations of a decoder on a `Tape`: what each of PyTorch's keeps for its backward pass (derivatives.yaml), and
what it needs for a moment. Widths are bytes of one element: 4 is fp32, 2 a 16-bit type."""

from __future__ import annotations

from hf_recipes.plan.memory.tape import Tape, Value

FULL, HALF = 4, 2


def cast(tape: Tape, x: Value, width: int) -> Value:
    """``x.to(dtype)``; nothing where it is of that width already."""
    return x if x.width == width else tape.operation((x,), x.count, width)


def add(tape: Tape, a: Value, b: Value) -> Value:
    """``a + b`` of one shape, in the wider dtype."""
    return tape.operation((a, b), a.count, max(a.width, b.width), passes=True)


def scale(tape: Tape, x: Value, width: int | None = None) -> Value:
    """``x`` times a number, or times a small tensor without gradient (of another `width`, if given)."""
    width = max(x.width, width or 0)
    return tape.operation((x,), x.count, width, backward_extra=0.0 if width == x.width else x.count * width)


def multiply(tape: Tape, a: Value, b: Value) -> Value:
    """``a * b`` of one shape, in the wider dtype; each is kept for the other's gradient."""
    kept = [mine for mine, other in ((a, b), (b, a)) if other.grad]
    return tape.operation((a, b), a.count, max(a.width, b.width), kept=kept)


def by_row(tape: Tape, x: Value, factors: Value) -> Value:
    """``x`` times one factor a row (of any count): its gradient is a product as large as `x`, summed."""
    kept = [x] if factors.grad else []
    extra = x.nbytes if factors.grad else 0.0
    return tape.operation((x, factors), x.count, x.width, kept=[*kept, factors], backward_extra=extra)


def by_channel(tape: Tape, x: Value, weight: Value) -> Value:
    """``weight * x`` with a weight of one factor a channel, in the wider dtype."""
    width = max(x.width, weight.width)
    kept = [*([x] if weight.grad else ()), *([weight] if x.grad else ())]
    extra = (x.count * width if weight.grad else 0.0) + (x.count * width if width != x.width else 0.0)
    return tape.operation((x, weight), x.count, width, kept=kept, backward_extra=extra)


def activation(tape: Tape, x: Value) -> Value:
    """SiLU or GELU: keeps its input."""
    return tape.operation((x,), x.count, x.width, kept=(x,))


def gated(tape: Tape, gate: Value, up: Value) -> Value:
    """``activation(gate) * up`` in one kernel (torch.compile)."""
    return tape.operation((gate, up), up.count, up.width, kept=(gate, up))


def product(
    tape: Tape, x: Value, weight: Value, out_features: float, *, autocast: int | None, bias: Value | None = None
) -> Value:
    """``linear(x, weight, bias)``; autocast casts what is not of its width, and keeps the casts."""
    width = autocast or weight.width
    narrow = cast(tape, x, width)
    matrix = weight if weight.width == width else tape.cached_copy(weight, width)
    kept = [*([narrow] if weight.grad else ()), *([matrix] if x.grad else ())]
    reads = [narrow, matrix]
    if bias is not None:
        reads.append(bias if bias.width == width else tape.cached_copy(bias, width))
    rows = x.count / (weight.count / out_features)
    return tape.operation(reads, rows * out_features, width, kept=kept)


def rms_norm(tape: Tape, x: Value, weight: Value | None, channels: float, *, fused: bool = False) -> Value:
    """RMSNorm as transformers writes it: in fp32, back in the input's dtype, times the weight. Fused (torch.compile) it
    keeps its input alone."""
    width = x.width
    if fused:
        return tape.operation((x,) if weight is None else (x, weight), x.count, width, kept=(x,))
    wide = cast(tape, x, FULL)
    # The backward of a square makes x¹, its product with 2, and that with the spread gradient of the mean.
    squares = tape.operation((wide,), x.count, FULL, kept=(wide,), backward_extra=2 * wide.nbytes)
    mean = tape.operation((squares,), x.count / channels, FULL)
    inverse = tape.operation((mean,), x.count / channels, FULL, keeps_output=True)
    scaled = by_row(tape, wide, inverse)
    tape.hold(x)
    narrow = cast(tape, scaled, width)
    return narrow if weight is None else by_channel(tape, narrow, weight)


def layer_norm(tape: Tape, x: Value, weight: Value, *, autocast: int | None) -> Value:
    """`torch.nn.LayerNorm`: one kernel that keeps its input, in fp32 under autocast."""
    wide = cast(tape, x, FULL) if autocast else x
    return tape.operation((wide, weight), x.count, wide.width, kept=(wide,))


def rotate(tape: Tape, x: Value, table_width: int) -> Value:
    """Rotary embedding of queries or keys: ``x * cos + rotate_half(x) * sin``."""
    cosine = scale(tape, x, table_width)
    # Both halves come back as zeros of full size with one half filled.
    turned = tape.operation((x,), x.count, x.width, backward_extra=1.5 * x.nbytes)
    sine = scale(tape, turned, table_width)
    out = add(tape, cosine, sine)
    tape.hold(x)
    return out


def dropout(tape: Tape, x: Value, share: float, *, device: str) -> Value:
    """Dropout in training keeps what it multiplies with: a byte an element on a GPU, a factor in the input's dtype on a
    CPU; with a share of 0 there is none."""
    if share <= 0:
        return x
    mask = tape.operation((), x.count, 1 if device == "cuda" else x.width)
    return tape.operation((x, mask), x.count, x.width, kept=(mask,))
