"""Whether the values of a checkpoint are sound, and the same as when its manifest was written."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hf_recipes.checkpoints.manifest import Manifest
from hf_recipes.checkpoints.verification.adapter import is_half
from hf_recipes.checkpoints.verification.findings import Findings, some
from hf_recipes.checkpoints.verification.scan_facts import FileScan, TensorFacts

# Text for people: written anew after an evaluation or an export, and filled in by hand.
_CARD = "README.md"


def check_manifest(scans: Mapping[str, FileScan], manifest: Manifest, findings: Findings) -> None:
    """Compare sizes, hashes (where they were computed), dtypes and shapes with the manifest."""
    for name, written in manifest.files.items():
        if name == _CARD:
            continue
        found = scans.get(name)
        if found is None:
            findings.problem(name, "is missing: the manifest lists it")
        elif found.bytes != written.bytes:
            findings.problem(name, f"has {found.bytes} bytes, {written.bytes} were written")
        elif found.sha256 and found.sha256 != written.sha256:
            findings.problem(name, "was changed after it was written (its SHA-256 differs from the manifest)")
        if found and found.tensors is not None and written.tensors is not None:
            _check_tensors(name, found.tensors, written.tensors, findings)
    surplus = [name for name in scans if name not in manifest.files]
    for name in surplus:
        if name.endswith(".safetensors"):
            findings.problem(name, "is not in the manifest: it holds tensors that nobody wrote with this checkpoint")
    others = [name for name in surplus if not name.endswith(".safetensors")]
    if others:
        findings.note(f"Not in the manifest, so not checked against it: {some(others)}.")


def _check_tensors(
    file: str, found: Mapping[str, TensorFacts], written: Mapping[str, TensorFacts], findings: Findings
) -> None:
    for name in sorted(set(found) ^ set(written)):
        what = "is missing: the manifest lists it" if name in written else "is not in the manifest"
        findings.problem(file, what, name)
    for name in sorted(set(found) & set(written)):
        now, then = found[name], written[name]
        if (now.dtype, now.shape) != (then.dtype, then.shape):
            what = f"is {now.dtype}{list(now.shape)}, {then.dtype}{list(then.shape)} was written"
            findings.problem(file, what, name)
        if now.abs_max == 0 and then.abs_max:
            findings.problem(file, f"is all zero; its largest value was {then.abs_max:g} when it was written", name)


def check_values(scans: Mapping[str, FileScan], findings: Findings) -> None:
    """Look for values that no sound training leaves behind: NaN, Inf, zeros where there must be none."""
    zero: list[str] = []
    halves_b: dict[str, float] = {}
    for file, scan in scans.items():
        for name, facts in (scan.tensors or {}).items():
            if facts.abs_max is None:
                continue
            if not math.isfinite(facts.abs_max):
                findings.problem(file, f"holds {'NaN' if math.isnan(facts.abs_max) else 'Inf'}", name)
            if is_half(name, "B"):
                halves_b[name] = facts.abs_max
            elif facts.abs_max == 0 and is_half(name, "A"):
                # It starts random; once it is zero, both halves get no gradient any more.
                findings.problem(file, "is all zero: this module can neither act nor learn", name)
            elif facts.abs_max == 0 and len(facts.shape) > 1:
                zero.append(name)
    if halves_b and not any(halves_b.values()):
        findings.note(
            "Every lora_B is all zero: this adapter has learned nothing yet and changes no answer; after a first step "
            "of warm-up, whose rate is 0, it must be so."
        )
    if zero:
        findings.note(f"All zero: {some(zero)}; biases and norms may be, matrices seldom are.")
