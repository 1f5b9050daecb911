"""Attention on a `Tape`: fused kernels that keep the sum of exponentials alone, and the plain product of softmax."""

from __future__ import annotations

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.operations import FULL, cast, scale
from hf_recipes.plan.memory.projection import Arithmetic
from hf_recipes.plan.memory.tape import Tape, Value
from hf_recipes.plan.settings import TrainingSettings


def attend(
    tape: Tape,
    queries: Value,
    keys: Value,
    values: Value,
    geometry: Geometry,
    settings: TrainingSettings,
    how: Arithmetic,
) -> Value:
    """Attention's output, ``(tokens, heads · head_dim)``."""
    groups = geometry.heads // geometry.kv_heads
    if settings.attention == "eager":
        return _plain(tape, queries, keys, values, geometry, how)
    masked = has_mask(settings)
    if masked and groups > 1 and settings.attention == "sdpa":
        keys, values = _repeat(tape, keys, groups), _repeat(tape, values, groups)
    return _fused(tape, queries, keys, values, geometry, how)


def has_mask(settings: TrainingSettings) -> bool:
    """Whether SDPA is given a mask of the square of the length."""
    return settings.attention == "sdpa" and (settings.padding_mask or settings.packed)


def mask_bytes(settings: TrainingSettings, how: Arithmetic, width: int) -> float:
    """What masks of all layers take together: one of booleans (SDPA) or numbers (eager), which the kernels turn into
    numbers."""
    if settings.attention == "eager":
        return how.tokens / how.rows * how.tokens * width
    if has_mask(settings):
        return how.tokens / how.rows * how.tokens
    return 0.0


def _repeat(tape: Tape, x: Value, groups: int) -> Value:
    return tape.operation((x,), x.count * groups, x.width)


def _fused(tape: Tape, queries: Value, keys: Value, values: Value, geometry: Geometry, how: Arithmetic) -> Value:
    """Flash attention (Dao 2023, arXiv:2307.08691): inputs, output and one fp32 number a head and token are kept. On a
    GPU the backward pass gathers the queries' gradient in fp32 and, with grouped heads, keys' and values' per query
    head."""
    width = how.autocast or values.width
    q, k, v = (cast(tape, x, width) for x in (queries, keys, values))
    sums = tape.operation((), how.tokens * geometry.heads, FULL)
    grouped = geometry.heads != geometry.kv_heads and k.count < q.count
    extra = (q.count * FULL + (2 * q.nbytes if grouped else 0.0)) if how.device == "cuda" else 0.0
    return tape.operation(
        (q, k, v, sums), q.count, width, kept=(q, k, v, sums), keeps_output=True, backward_extra=extra
    )


def _plain(tape: Tape, queries: Value, keys: Value, values: Value, geometry: Geometry, how: Arithmetic) -> Value:
    """transformers' eager attention: scores, their multiple, their sum with the mask, softmax in fp32, its cast."""
    groups = geometry.heads // geometry.kv_heads
    if groups > 1:
        keys, values = _repeat(tape, keys, groups), _repeat(tape, values, groups)
    stream = queries.width
    width = how.autocast or stream
    scores_count = how.tokens * (how.tokens / how.rows) * geometry.heads
    q = _contiguous(tape, cast(tape, queries, width), repeated=False)
    k, v = (_contiguous(tape, cast(tape, x, width), repeated=groups > 1) for x in (keys, values))
    scores = tape.operation((q, k), scores_count, width, kept=(q, k))
    scaled = scale(tape, scores)
    summed = scale(tape, scaled, max(width, stream))
    tape.hold(scaled)
    wide = cast(tape, summed, FULL) if how.device == "cpu" else summed
    soft = tape.operation((wide,), scores_count, FULL, keeps_output=True)
    tape.hold(summed)
    narrow = cast(tape, cast(tape, soft, stream), width)
    out = tape.operation((narrow, v), queries.count, width, kept=(narrow, v))
    tape.hold(keys, values, narrow)
    return tape.operation((out,), out.count, out.width)


def _contiguous(tape: Tape, x: Value, *, repeated: bool) -> Value:
    """Batched products take contiguous matrices: heads and tokens lie the other way round, but for repeated ones."""
    return x if repeated else tape.operation((x,), x.count, x.width)
