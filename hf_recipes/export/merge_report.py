"""What a merge tells: in its output as JSON, and on the terminal in a few lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.files import json_safe
from hf_recipes.export.proofs.companions import lines as companion_lines
from hf_recipes.export.proofs.verdict import lines as logits_lines

REPORT_NAME = "hf_recipes_merge.json"


@dataclass(frozen=True)
class MergeReport:
    """What a merge did; also in the output as ``hf_recipes_merge.json``.

    `dtype` is ``bf16``, ``fp16`` or ``fp32``; `base_identity` ``same``, ``other`` or ``unknown`` against what the run
    recorded; `base_values` ``original``, or ``dequantized`` and how; `way` ``stream``, or ``in memory`` where PEFT had
    to merge; `adapters` their directories and weights, `combination` how several became one. `seconds` are those of
    reading and writing, each proof has its own; `proof` has the keys ``tensors`` (see `prove_tensors`), ``companions``
    (see `prove_companions`), ``logits`` (see `compare_logits`) and ``in_memory`` (see `InMemoryFacts`), as far as they
    apply.
    """

    output: Path
    adapter: Path
    base: Path
    base_identity: str
    base_values: str
    dtype: str
    way: str
    adapters: list[dict[str, Any]]
    combination: dict[str, Any] | None
    tensors_total: int
    tensors_merged: int
    tensors_changed: int
    adapter_tensors_consumed: int
    untied: bool
    vocab_size: int | None
    bytes: int
    seconds: float
    notices: list[str]
    proof: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return json_safe(asdict(self))

    def lines(self) -> list[str]:
        """The report in a few lines for the terminal."""
        lines = [
            f"{self.output}: {self.tensors_total} tensors in {self.dtype}, {self.bytes / 1e6:,.1f} MB, "
            f"{self.seconds:.1f} s; {self.tensors_changed} changed by {self.adapter_tensors_consumed} adapter tensors, "
            "all of them used",
        ]
        if tensors := self.proof.get("tensors"):
            lines.append(f"  tensors: {_tensor_sentence(tensors)}")
        if in_memory := self.proof.get("in_memory"):
            from hf_recipes.export.in_memory import InMemoryFacts

            lines += [f"  {line}" for line in InMemoryFacts(**in_memory).lines()]
        if companions := self.proof.get("companions"):
            lines += [f"  {line}" for line in companion_lines(companions)]
        if logits := self.proof.get("logits"):
            lines += [f"  {line}" for line in logits_lines(logits)]
        return lines


def _tensor_sentence(proof: dict[str, Any]) -> str:
    worst = proof["largest_error"]
    how = "the same to the bit" if worst == 0 else f"largest error {worst:.2f} of what rounding allows"
    return (
        f"{proof['copied']} as in the base to the byte, {proof['recomputed']} recomputed by another route, {how} "
        f"({proof['seconds']:.1f} s)"
    )
