"""Looks at this machine: gathers, judges, and puts it so that it can be shown to anybody."""

from __future__ import annotations

import os
from typing import Any

from hf_recipes.core.versions import stack_versions
from hf_recipes.doctor.environment.driver import look_at_driver
from hf_recipes.doctor.environment.facts import Facts
from hf_recipes.doctor.environment.machine import look_at_builders, look_at_machine
from hf_recipes.doctor.environment.packages import installed_packages
from hf_recipes.doctor.environment.probe import RunningProbe
from hf_recipes.doctor.environment.reach import look_at_reach
from hf_recipes.doctor.environment.rules import judge
from hf_recipes.doctor.findings import Finding
from hf_recipes.doctor.private import without_names

PATIENCE_SECONDS = 120.0
_VARIABLES = (
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "TOKENIZERS_PARALLELISM",
    "HF_HUB_OFFLINE",
    "PYTHONUTF8",
)


def gather_facts(*, quick: bool = False, patience_seconds: float = PATIENCE_SECONDS) -> Facts:
    """Look at everything; the process with torch runs beside the rest.

    Args:
        quick: leave out what needs torch.
        patience_seconds: after which that process is ended.
    """
    probe = None if quick else RunningProbe()
    try:
        facts = Facts(
            packages=installed_packages(),
            machine=look_at_machine(),
            reach=look_at_reach(),
            builders=look_at_builders(),
            driver=look_at_driver(),
            variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        )
        if probe is None:
            return facts
        return Facts(**{**vars(facts), "probe": probe.result(patience_seconds)})
    finally:
        if probe is not None:
            probe.stop()


def check_environment(*, quick: bool = False, patience_seconds: float = PATIENCE_SECONDS) -> list[Finding]:
    """What this machine's installation is worth for training.

    Args:
        quick: leave out what needs torch.
        patience_seconds: for what does.
    """
    return findings_of(gather_facts(quick=quick, patience_seconds=patience_seconds))


def findings_of(facts: Facts) -> list[Finding]:
    """What facts are worth, fit to be shown to anybody."""
    return without_names(judge(facts))


def as_report(findings: list[Finding], facts: Facts) -> dict[str, Any]:
    """Versions, hardware and findings, for an issue: no secrets, no user's or host's name, the home as ``~``."""
    machine, devices = facts.machine, dict((facts.probe.results if facts.probe else {}).get("devices", {}))
    return {
        "schema": 1,
        "versions": stack_versions(),
        "hardware": {
            "system": machine.system,
            "cores": machine.cores,
            "cpu_quota": machine.cpu_quota,
            "ram_gb": round(machine.ram_bytes / 1e9, 1),
            "container_ram_gb": _gigabytes(machine.container_ram_bytes),
            "shm_gb": _gigabytes(machine.shm_bytes),
            "driver": facts.driver.version,
            "devices": [str(device.get("name")) for device in devices.get("devices") or []],
        },
        "variables": dict(facts.variables),
        "findings": [one.as_values() for one in findings],
        "errors": sum(one.level == "error" for one in findings),
        "warnings": sum(one.level == "warning" for one in findings),
    }


def _gigabytes(count: int | None) -> float | None:
    return None if count is None else round(count / 1e9, 1)
