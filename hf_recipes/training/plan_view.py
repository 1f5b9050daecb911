"""A plan as it is shown and kept: the view that terminal, page and picture draw, and plain values for plan.json."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

from hf_recipes.plan.compute import Arithmetic
from hf_recipes.plan.cost import Cost
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.estimate import MemoryEstimate, estimate_memory
from hf_recipes.plan.parameters import active_parameters, count_parameters
from hf_recipes.plan.pictures.data import DeviceRow, LengthGrid, MemoryBar, PlanView
from hf_recipes.plan.strategy.names import describe
from hf_recipes.plan.strategy.reasons import CHECKPOINTED, gib
from hf_recipes.plan.strategy.search import Considered
from hf_recipes.plan.utilization import Band
from hf_recipes.training.plan_job import memory_dict, settings_dict
from hf_recipes.training.planning import DevicePlan, Plan, PlanOrder

_SHORTEST = 256
_GRID_MICRO_BATCHES = (1, 2, 4, 8, 16)


def plan_view(plan: Plan, order: PlanOrder) -> PlanView:
    """What is shown of a plan; the first device in detail."""
    first = plan.devices[0]
    return PlanView(
        title=_title(plan),
        facts=_facts(plan, first),
        sentence=_sentence(first.choice.reason),
        parameters=count_parameters(plan.geometry).by_part,
        device=_device_name(first),
        limit_bytes=first.limit_bytes,
        bars=[_bar(one, chosen=one is first.choice.taken) for one in first.choice.considered],
        not_taken=[(describe(one.layout), one.why) for one in first.choice.others],
        devices=[_device_row(each, plan) for each in plan.devices] if len(plan.devices) > 1 else (),
        grid=_grid(plan, first, order),
        notes=_notes(plan, first),
    )


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}."


def _title(plan: Plan) -> str:
    return f"{plan.recipe.values['model_name_or_path']}, method {plan.recipe.get('method', 'lora')}"


def _device_name(device: DevicePlan) -> str:
    ranks = device.machines.ranks
    nodes = f" in {device.machines.nodes} nodes" if device.machines.nodes > 1 else ""
    return device.accelerator.name if ranks == 1 else f"{ranks} × {device.accelerator.name}{nodes}"


def _facts(plan: Plan, device: DevicePlan) -> dict[str, str]:
    geometry, time = plan.geometry, device.time
    facts = {
        "parameters": f"{geometry.total:,}" + _active(geometry),
        "trained": f"{geometry.trained:,} ({geometry.trained / geometry.total:.2%})",
        "rows": f"{_count(plan.data.rows)}, the longest {plan.data.longest} tokens ({plan.data.source})",
        "global batch": _batch(device.shown),
    }
    if time is None:
        return facts
    if plan.run_is_known:
        schedule = time.schedule
        facts["run"] = f"{schedule.steps:,} steps, {schedule.epochs:g} epochs of {plan.data.work.tokens:,} tokens"
        facts["arithmetic"] = f"{time.arithmetic.useful:.3g} FLOPs" + _again(time.arithmetic)
        facts["time"] = _hours(time.hours)
    facts["a step"] = f"{_seconds(time.step_seconds)}, {time.tokens_per_second.expected:,.0f} tokens/s"
    facts["utilisation"] = f"{time.utilization.expected:.0%} of the peak over a whole step; computing: {time.basis}"
    if plan.run_is_known and device.cost and device.cost.usd and device.cost.price:
        facts["cost"] = _dollars(device.cost.usd, device.cost.price.source)
    if plan.run_is_known and device.cost and device.cost.kwh:
        energy = device.cost.energy_usd
        facts["energy"] = f"{device.cost.kwh.expected:,.3g} kWh" + (f", ${energy.expected:,.2f}" if energy else "")
    return facts


def _again(arithmetic: Arithmetic) -> str:
    return f", {arithmetic.computed:.3g} with what is computed again" if arithmetic.again else ""


def _active(geometry: Geometry) -> str:
    if not geometry.experts:
        return ""
    return f", {active_parameters(geometry):,} active for a token"


def _count(rows: int) -> str:
    return f"{rows:,} rows" if rows else "rows unknown"


def _batch(one: Considered) -> str:
    settings, ranks = one.settings, one.layout.data_parallel
    total = settings.micro_batch * settings.accumulation * ranks
    count = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return f"{total} = {settings.micro_batch} a device × {settings.accumulation} accumulated × {count}"


def _hours(band: Band) -> str:
    unit, factor = ("h", 1.0) if band.expected >= 1 else ("min", 60.0) if band.expected * 60 >= 1 else ("s", 3600.0)
    return f"{band.expected * factor:.3g} {unit} ({band.low * factor:.3g} to {band.high * factor:.3g})"


def _dollars(band: Band, source: str) -> str:
    if band.expected < 0.01:
        return f"under $0.01 ({source})"
    return f"${band.expected:,.2f} ({band.low:,.2f} to {band.high:,.2f}; {source})"


def _seconds(band: Band) -> str:
    return f"{band.expected:.3g} s ({band.low:.3g} to {band.high:.3g})"


def label_of(one: Considered) -> str:
    """``ZeRO-2 over 8 ranks, micro-batch 4, all layers checkpointed``."""
    return f"{describe(one.layout)}, micro-batch {one.settings.micro_batch}, {CHECKPOINTED[one.settings.checkpointing]}"


def memory_parts(memory: MemoryEstimate) -> dict[str, float]:
    """The peak by part, with what the allocator and the driver add."""
    parts = {name: size for name, size in memory.phases[memory.peak_phase].items() if size}
    parts |= {"fragmentation": memory.reserved_bytes - memory.active_bytes, "context": memory.context_bytes}
    return {name: size for name, size in parts.items() if size}


def _bar(one: Considered, *, chosen: bool) -> MemoryBar:
    memory = one.memory
    return MemoryBar(
        label=label_of(one),
        parts=memory_parts(memory),
        phase=memory.peak_phase,
        chosen=chosen,
        host_bytes=sum(memory.host.values()),
        fits=one.fits,
    )


def _device_row(device: DevicePlan, plan: Plan) -> DeviceRow:
    shown, taken = device.shown, device.choice.taken
    timed = device.time if plan.run_is_known else None
    cost = device.cost if timed else None
    return DeviceRow(
        device=device.accelerator.name,
        devices=device.machines.ranks,
        memory_bytes=device.accelerator.memory_bytes,
        needed_bytes=shown.memory.device_bytes,
        strategy=label_of(shown) if taken else "none",
        hours=_tuple(timed.hours) if timed else None,
        cost=_tuple(cost.usd) if cost and cost.usd else None,
        kwh=cost.kwh.expected if cost and cost.kwh else None,
        why=" ".join(device.choice.notes) if taken else device.choice.reason,
        fits=taken is not None,
    )


def _tuple(band: Band) -> tuple[float, float, float]:
    return band.low, band.expected, band.high


def _grid(plan: Plan, device: DevicePlan, order: PlanOrder) -> LengthGrid:
    """Memory over length and micro-batch, everything else as chosen."""
    shown = device.shown
    needs = partial(estimate_memory, plan.geometry, layout=shown.layout.one_replica, device=order.device)
    lengths = _lengths(shown.settings.tokens, plan.geometry.max_positions)
    return LengthGrid(
        tokens=lengths,
        micro_batches=_GRID_MICRO_BATCHES,
        needed_bytes=[
            [
                needs(replace(shown.settings, tokens=length, micro_batch=rows)).device_bytes
                for rows in _GRID_MICRO_BATCHES
            ]
            for length in lengths
        ],
        chosen=(shown.settings.tokens, shown.settings.micro_batch),
    )


def _lengths(tokens: int, most: int) -> list[int]:
    """Powers of two around the longest row, as far as the model has positions."""
    lengths, length = [], _SHORTEST
    while length <= max(4 * tokens, 4 * _SHORTEST) and (not most or length <= most):
        lengths.append(length)
        length *= 2
    return lengths[-6:] or [tokens]


def _notes(plan: Plan, device: DevicePlan) -> list[str]:
    notes = [_sentence(note) for note in device.choice.notes]
    accelerator = device.accelerator
    notes.append(f"{accelerator.name}: {accelerator.source} ({accelerator.date}); memory {accelerator.memory_source}.")
    if device.cost and device.cost.usd is None:
        notes.append(f"No {device.cost.purchase} price of {accelerator.name} is known: give --price.")
    host = sum(device.shown.memory.host.values()) * device.shown.layout.ranks_per_node
    if host and device.machines.host_memory_bytes is None:
        notes.append(
            f"A machine's own memory must hold {gib(host)} besides; whether it does is not known (--host-memory)."
        )
    if 0 < plan.geometry.max_positions < device.shown.settings.tokens:
        notes.append(
            f"The model was made for {plan.geometry.max_positions:,} positions, and rows have "
            f"{device.shown.settings.tokens:,}: lower max_length."
        )
    if device.headroom:
        notes.append(f"{device.headroom:.0%} of a device's memory are kept free, for what no estimate knows.")
    if not plan.run_is_known:
        notes.append(
            "How much is trained on is not known, so there are no hours: give --tokens N, max_steps, or data that are "
            "here."
        )
    return notes


def plan_dict(plan: Plan) -> dict[str, Any]:
    """A plan as plain values: what ``--json`` prints."""
    return {
        "schema": 1,
        "model": plan.recipe.values["model_name_or_path"],
        "method": plan.recipe.get("method", "lora"),
        "parameters": {
            "total": plan.geometry.total,
            "trained": plan.geometry.trained,
            "by_part": count_parameters(plan.geometry).by_part,
        },
        "data": {
            "rows": plan.data.rows,
            "longest": plan.data.longest,
            "tokens": plan.data.work.tokens,
            "supervised_tokens": plan.data.work.supervised,
            "source": plan.data.source,
        },
        "devices": [_device_dict(device, plan) for device in plan.devices],
    }


def _device_dict(device: DevicePlan, plan: Plan) -> dict[str, Any]:
    time, cost = device.time, device.cost
    return {
        "accelerator": asdict(device.accelerator),
        "ranks": device.machines.ranks,
        "nodes": device.machines.nodes,
        "fits": device.choice.taken is not None,
        "sentence": device.choice.reason,
        "notes": list(device.choice.notes),
        "chosen": _considered_dict(device.choice.taken) if device.choice.taken else None,
        "others": [_considered_dict(one) for one in device.choice.others],
        "changes": [{"change": each.words, "needs_bytes": each.needs_bytes} for each in device.choice.changes],
        "time": _time_dict(time, plan) if time else None,
        "cost": _cost_dict(cost) if cost and plan.run_is_known else None,
    }


def _cost_dict(cost: Cost) -> dict[str, Any]:
    price = asdict(cost.price) if cost.price else None
    return {"usd": _band(cost.usd), "kwh": _band(cost.kwh), "energy_usd": _band(cost.energy_usd), "price": price}


def _time_dict(time: Any, plan: Plan) -> dict[str, Any]:
    run = {"steps": time.schedule.steps, "epochs": time.schedule.epochs, "hours": _band(time.hours)}
    return {
        **(run if plan.run_is_known else {}),
        "step_seconds": _band(time.step_seconds),
        "tokens_per_second": _band(time.tokens_per_second),
        "flops": asdict(time.arithmetic),
        "utilization": _band(time.utilization),
        "basis": time.basis,
    }


def _band(band: Band | None) -> dict[str, float] | None:
    return None if band is None else asdict(band)


def _considered_dict(one: Considered) -> dict[str, Any]:
    return {
        "strategy": describe(one.layout),
        "layout": asdict(one.layout),
        "settings": settings_dict(one.settings),
        "memory": memory_dict(one.memory),
        "step_cost_seconds": one.cost.seconds,
        "fits": one.fits,
        "why": one.why,
    }
