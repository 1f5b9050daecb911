"""What the process with torch found out, as findings: build, devices, dtypes, attention kernels, bitsandbytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hf_recipes.doctor.environment.facts import Facts
from hf_recipes.doctor.findings import Finding, Level

# The oldest Linux driver of each CUDA major version (minor-version compatibility; NVIDIA's CUDA Toolkit release notes,
# table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility").
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
_NEEDS = {
    "torch": "torch cannot be imported: nothing can train",
    "devices": "torch cannot ask for its devices",
    "products": "products cannot be computed",
    "attention": "attention kernels cannot be tried",
    "bitsandbytes": "bitsandbytes does not work: no QLoRA, no 8-bit optimizer",
}


def on_probe(facts: Facts) -> Iterator[Finding]:
    """All that needed torch."""
    probe = facts.probe
    if probe is None:
        yield Finding("note", "torch", "not tried (--quick): devices, dtypes, attention kernels, bitsandbytes")
        return
    for stage, rule in _RULES.items():
        result = probe.results.get(stage)
        if result is None:
            continue
        if "error" in result:
            yield Finding(_level(stage), stage, f"{_NEEDS[stage]} ({result['error']})", _CURES.get(stage, ""))
            continue
        yield from rule(result, facts)
    if probe.failed_stage is not None:
        told = f"while {_NEEDS.get(probe.failed_stage, probe.failed_stage)} was tried, {probe.failure}"
        if probe.failed_stage in _NEEDS:
            told = f"{_NEEDS[probe.failed_stage]}: {probe.failure}"
        yield Finding(_level(probe.failed_stage), probe.failed_stage, told, _CURES.get(probe.failed_stage, ""))


def _level(stage: str) -> Level:
    return "error" if stage in ("torch", "devices", "products") else "warning"


_CURES = {
    "torch": "install torch again: pip install --force-reinstall torch",
    "devices": "nvidia-smi must work first; after a driver update, restart",
    "products": "see what else uses the device (nvidia-smi), and whether torch is built for it",
    "bitsandbytes": "pip install -U bitsandbytes; python -m bitsandbytes says what it looks for",
}


def _on_torch(result: Mapping[str, Any], facts: Facts) -> Iterator[Finding]:
    cuda, version = result.get("cuda"), result.get("version")
    driver = facts.driver
    if driver.devices and cuda is None and result.get("hip") is None:
        told = f"{version} is built without CUDA, and this machine has {driver.devices} NVIDIA device(s)"
        yield Finding("error", "torch", told, "install a build with CUDA (pip install torch, without the cpu index)")
        return
    if driver.devices and cuda and driver.version:
        needed = _OLDEST_DRIVER.get(int(str(cuda).partition(".")[0]))
        if needed is not None and int(driver.version.partition(".")[0]) < needed:
            told = f"{version} needs a driver of {needed} or newer (CUDA {cuda}), and {driver.version} is loaded"
            yield Finding("error", "torch", told, "update the driver, or install torch for an older CUDA")
            return
    built = f"CUDA {cuda}" if cuda else f"ROCm {result['hip']}" if result.get("hip") else "no CUDA"
    yield Finding("ok", "torch", f"{version} ({built})")


def _on_devices(result: Mapping[str, Any], facts: Facts) -> Iterator[Finding]:
    devices = result.get("devices") or []
    if not devices:
        kind = str(result.get("kind", "cpu"))
        if facts.driver.devices and kind == "cpu":
            why = f" ({result['complaint']})" if result.get("complaint") else ""
            told = f"{facts.driver.devices} NVIDIA device(s) in /dev, and torch sees none{why}"
            cure = "nvidia-smi must work first; in a container, start it with --gpus all; look at CUDA_VISIBLE_DEVICES"
            yield Finding("error", "devices", told, cure)
        elif kind == "cpu":
            cores = facts.machine.cores
            yield Finding("note", "devices", f"no accelerator: training on {cores} CPU core{'s' if cores > 1 else ''}")
        else:
            yield Finding("ok", "devices", f"one or more of kind {kind}")
        return
    for index, device in enumerate(devices):
        free, total = float(device["free_bytes"]), float(device["total_bytes"])
        shown = f"{index}: {device['name']} ({device['capability']}), {free / 1e9:.3g} of {total / 1e9:.3g} GB free"
        if not device["built_for"]:
            told = f"{shown}; this torch holds no kernels for it"
            yield Finding("warning", "devices", told, "install a build of torch for this device (or newer)")
        elif free < 0.9 * total:
            yield Finding("note", "devices", shown + "; the rest is in use", "see who by: nvidia-smi")
        else:
            yield Finding("ok", "devices", shown)


def _on_products(result: Mapping[str, Any], facts: Facts) -> Iterator[Finding]:
    for name, error in dict(result.get("errors") or {}).items():
        level: Level = "error" if name == "float32" else "warning"
        yield Finding(level, "dtypes", f"no products in {name} ({error})", f"do not train in {name}")
    if "bfloat16" in (result.get("errors") or {}):
        return
    if result.get("bf16"):
        yield Finding("ok", "dtypes", "bf16 is computed in hardware")
    else:
        told = "no bf16 arithmetic: it would be emulated, many times slower; recipes train in fp32 here"
        yield Finding("note", "dtypes", told, "leave bf16 and dtype out of the recipe, or dtype: fp32")


def _on_attention(result: Mapping[str, Any], facts: Facts) -> Iterator[Finding]:
    kernels = list(result.get("sdpa") or [])
    broken = {name: error for name, error in dict(result.get("packages") or {}).items() if error}
    for name, error in broken.items():
        package = {"flash_attn": "flash-attn"}.get(name, name)
        cure = f"build it for this torch: pip install --no-build-isolation --force-reinstall {package}; or remove it"
        yield Finding("warning", "attention", f"{name} is installed and cannot be imported ({error})", cure)
    there = [*kernels, *(name for name in result.get("packages") or {} if name not in broken)]
    if "flash" not in kernels and "efficient" not in kernels and "cudnn" not in kernels:
        told = (
            f"no memory-saving kernel (there is: {', '.join(there) or 'none'}): memory grows with the square of length"
        )
        yield Finding("warning", "attention", told, "shorten max_length, or use a device of this decade")
    else:
        yield Finding(
            "ok",
            "attention",
            f"sdpa: {', '.join(kernels)}" + (f"; {', '.join(there[len(kernels) :])}" if there[len(kernels) :] else ""),
        )


def _on_bitsandbytes(result: Mapping[str, Any], facts: Facts) -> Iterator[Finding]:
    if not result.get("installed"):
        yield Finding("note", "bitsandbytes", "not installed: no QLoRA, no 8-bit optimizer", "pip install bitsandbytes")
    elif not result.get("sound"):
        told = f"a weight put into 4 bits and back is off by {float(result.get('largest_error', 0)):.3g}"
        yield Finding("error", "bitsandbytes", told, _CURES["bitsandbytes"])
    else:
        yield Finding("ok", "bitsandbytes", "a 4-bit product works")


_RULES = {
    "torch": _on_torch,
    "devices": _on_devices,
    "products": _on_products,
    "attention": _on_attention,
    "bitsandbytes": _on_bitsandbytes,
}
