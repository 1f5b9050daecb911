"""Facts in, findings out: what is fine, what is worth knowing, what will make a run slow, what will make it fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hf_recipes.doctor.environment.facts import Facts
from hf_recipes.doctor.environment.machine_rules import (
    on_cores,
    on_disks,
    on_limits,
    on_memory,
    on_shared_memory,
    on_text,
)
from hf_recipes.doctor.environment.package_rules import on_packages, on_python
from hf_recipes.doctor.environment.probe_rules import on_probe
from hf_recipes.doctor.environment.start_rules import on_builders, on_driver, on_reach
from hf_recipes.doctor.findings import Finding

RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    on_packages, on_python, on_probe, on_driver, on_memory, on_cores, on_disks, on_shared_memory, on_limits,
    on_builders, on_reach, on_text,
)  # fmt: skip


def judge(facts: Facts) -> list[Finding]:
    """All findings, in the order of a reader's questions."""
    return [finding for rule in RULES for finding in rule(facts)]
