"""Why a strategy is taken or not, in sentences."""

from __future__ import annotations

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import Checkpointing
from hf_recipes.plan.strategy.candidates import Wishes, is_launched
from hf_recipes.plan.strategy.machines import Machines
from hf_recipes.plan.strategy.names import describe
from hf_recipes.plan.strategy.search import SAME_COST, Considered
from hf_recipes.plan.strategy.step_cost import StepCost

CHECKPOINTED: dict[Checkpointing, str] = {
    "off": "no layer checkpointed",
    "every_4": "every fourth layer checkpointed",
    "every_3": "every third layer checkpointed",
    "every_2": "every second layer checkpointed",
    "selective": "all layers but attention checkpointed",
    "all": "all layers checkpointed",
    "host": "all layers checkpointed, their inputs on the host",
}
_PHASES = {
    "load": "while loading",
    "forward": "at the end of the forward pass",
    "backward": "in the backward pass",
    "optimizer_step": "in the optimizer step",
    "save": "while saving",
    "evaluation": "in the evaluation",
}


# Above this share of the memory a fit is called tight.
_TIGHT = 0.88


def gib(size: float) -> str:
    """``23.5 GiB``."""
    return f"{size / 2**30:.1f} GiB"


def does_not_fit(one: Considered, machines: Machines, wishes: Wishes) -> str:
    """``needs 93.1 GiB at least (in the optimizer step), has 79.6 GiB``, or the same of the host."""
    needs = one.memory.device_bytes
    if needs <= machines.memory_bytes * (1 - wishes.headroom):
        host, has = sum(one.memory.host.values()) * one.layout.ranks_per_node, machines.host_memory_bytes or 0.0
        return f"needs {gib(host)} of a node's own memory, has {gib(has)}"
    has_words = gib(machines.memory_bytes)
    if needs <= machines.memory_bytes:
        has_words += f", of which {wishes.headroom:.0%} are kept free"
    return f"needs {gib(needs)} at least ({_PHASES.get(one.memory.peak_phase, 'at its peak')}), has {has_words}"


def slower(one: Considered, taken: StepCost, machines: Machines) -> str:
    """Why a strategy that fits was not taken."""
    told = f"fits in {gib(one.memory.device_bytes)}"
    ratio = one.cost.seconds / taken.seconds
    if ratio < 1 / SAME_COST:  # only what moves states to the host is passed over for a slower one
        return f"{told}, and by this estimate faster, but moves states to the host, which is left for where it must be"
    if ratio <= SAME_COST:
        return f"{told}, and is no faster"
    cost = one.cost
    more = {
        f"talks more, over {_medium(one.layout, machines)}": cost.communication - taken.communication,
        "moves states to the host and back": cost.offload - taken.offload,
        "computes more layers again": cost.recomputation - taken.recomputation,
        "waits in the pipeline": cost.bubble - taken.bubble,
        "works in smaller pieces": cost.compute - taken.compute,
    }
    return f"{told}, but a step takes {ratio:.2f} × as long: it {max(more, key=lambda name: more[name])}"


def _medium(layout: Layout, machines: Machines) -> str:
    if layout.one_replica.nodes > 1:
        return "the network"
    return "the devices' link" if machines.link else "PCIe"


def chosen_sentence(taken: Considered, machines: Machines, wishes: Wishes, misfit: Considered | None) -> str:
    """The choice and its reason; `misfit` is one that shares less and does not fit."""
    settings, needs = taken.settings, taken.memory.device_bytes
    way = f"micro-batch {settings.micro_batch} × {settings.accumulation} accumulated"
    way += f", {CHECKPOINTED[settings.checkpointing]}"
    told = f"needs {gib(needs)} of {gib(machines.memory_bytes)}"
    if needs > _TIGHT * machines.memory_bytes:
        told += ", which is tight"
    if host := sum(taken.memory.host.values()) * taken.layout.ranks_per_node:
        told += f", and {gib(host)} of each node's own memory"
    why = "the cheapest that fits"
    if wishes.strategy:
        why = "the strategy that was asked for, in its cheapest way that fits"
    if misfit is not None:
        why += f" ({describe(misfit.layout)} needs {gib(misfit.memory.device_bytes)} at least)"
    planned = "" if is_launched(taken.layout) else "; hf-recipes plans it, but does not launch it"
    return f"{describe(taken.layout)}, {way}: {told}; {why}{planned}"


def batch_notes(wanted: int, reached: int, layout: Layout, wishes: Wishes) -> tuple[str, ...]:
    """What must be said where the wanted global batch cannot be kept."""
    if wanted == reached:
        return ()
    unit = f"{layout.data_parallel} data-parallel ranks"
    if (wishes.micro_batch or 1) > 1:
        unit += f" with a micro-batch of {wishes.micro_batch}"
    return (
        f"a global batch of {wanted} is no multiple of {unit}, so it becomes {reached}: check the learning rate, or "
        "change the number of devices",
    )
