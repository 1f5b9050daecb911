"""A profile as text for the terminal."""

from __future__ import annotations

from hf_recipes.core.dtypes import SHORT_NAMES
from hf_recipes.core.tables import render_table
from hf_recipes.profiling.advice import Answer, caveat
from hf_recipes.profiling.facts import Profile

_MIB = 2**20


def render(profile: Profile, checks: list[Answer]) -> str:
    """The table of phases, the figures, the top operators and the checks."""
    parts = [
        f"== Where a step goes ({profile.steps} traced steps of {profile.recipe}) ==",
        _phase_table(profile),
        "== Speed (untraced steps) ==",
        _speed(profile),
        "== Operators that take most time ==",
        _operator_table(profile),
        "== Checks ==",
        *(_check(answer) for answer in checks),
    ]
    if few := caveat(profile):
        parts.append(few)
    if profile.trace:
        parts.append(f"Trace: {profile.trace} (open it in a browser at chrome://tracing or ui.perfetto.dev)")
    return "\n".join(parts)


def _phase_table(profile: Profile) -> str:
    on_device = any(row.device_seconds is not None for row in profile.phases)
    headers = ["phase", "host ms" if on_device else "ms a step", "share", "peak MiB"]
    rows = []
    for row in profile.phases:
        cells = [
            f"  {row.part}" if row.part else row.phase,
            f"{1000 * row.seconds:.1f}",
            f"{100 * row.share:.1f} %",
            "" if row.peak_bytes is None else f"{row.peak_bytes / _MIB:.0f}",
        ]
        if row.device_seconds is not None:
            cells.insert(2, f"{1000 * row.device_seconds:.1f}")
        rows.append(cells)
    if on_device:
        headers.insert(2, "GPU ms")
    return render_table(headers, rows)


def _speed(profile: Profile) -> str:
    speed, setting = profile.throughput, profile.setting
    dtypes = ", ".join(
        f"{SHORT_NAMES.get(dtype, dtype)} {100 * share:.1f} %" for dtype, share in profile.matmul_dtypes.items()
    )
    asked = f"{SHORT_NAMES[setting.weights]} weights, " + (
        f"{SHORT_NAMES[setting.autocast]} autocast" if setting.autocast else "no autocast"
    )
    rows = [
        ("step", f"{speed.step_seconds:.3f} s (traced steps {100 * speed.tracer_slowdown:+.0f} %)"),
        ("useful tokens", f"{speed.tokens:,.0f} a second, {speed.supervised_tokens:,.0f} of them supervised"),
        ("padding", f"{100 * profile.padding_share:.1f} % of {speed.positions:,.0f} positions a second"),
        ("useful arithmetic", f"{speed.useful_flops / 1e9:,.1f} GFLOP/s = {100 * speed.mfu:.1f} % MFU"),
        ("computed arithmetic", f"{speed.computed_flops / 1e9:,.1f} GFLOP/s, padding and recomputation included"),
        ("peak", f"{speed.peak_flops / 1e9:,.1f} GFLOP/s ({speed.peak_source})"),
        ("matrix products in", f"{dtypes} (asked for: {asked})"),
        ("busy", f"{100 * speed.busy:.1f} % of {setting.device_name}"),
        ("memory", _memory(profile)),
    ]
    if setting.ranks > 1:
        rows.insert(2, ("all ranks", f"{speed.tokens_all_ranks:,.0f} useful tokens a second on {setting.ranks} ranks"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)


def _memory(profile: Profile) -> str:
    free = profile.setting.free_bytes / _MIB
    text = f"{profile.peak_bytes / _MIB:,.0f} MiB of tensors at most, {free:,.0f} MiB left free"
    if profile.peak_resident_bytes:
        text += f"; the process {profile.peak_resident_bytes / _MIB:,.0f} MiB, loading included"
    return text


def _operator_table(profile: Profile) -> str:
    rows = [
        (
            _shortened(operator.name),
            f"{operator.calls:.0f}",
            f"{1000 * operator.seconds:.1f}",
            f"{100 * operator.share:.1f} %",
        )
        for operator in profile.operators
    ]
    return render_table(["operator", "calls a step", "ms a step", "share"], rows)


def _shortened(name: str, width: int = 60) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _check(answer: Answer) -> str:
    line = f"{'yes' if answer.yes else 'NO '}  {answer.question} {answer.measured}"
    return line if answer.yes else f"{line}\n     → {answer.advice}"
