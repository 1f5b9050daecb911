"""The proofs of a merge, as far as they were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.dtypes import SHORT_NAMES
from hf_recipes.core.log import logger
from hf_recipes.export.merge_inputs import MergeInputs
from hf_recipes.export.merge_order import MergeOrder
from hf_recipes.export.merge_writing import Written
from hf_recipes.export.progress import progress

if TYPE_CHECKING:
    from hf_recipes.export.bases.trained_quantization import TrainedQuantization


def prove(order: MergeOrder, inputs: MergeInputs, staging: Path, written: Written) -> None:
    if written.facts:
        written.proof["in_memory"] = written.facts
    if order.proof == "off":
        return
    from hf_recipes.export.proofs.companions import prove_companions

    adapter, base = inputs.places[0], inputs.base.directory
    if inputs.plan:
        from hf_recipes.export.proofs.kept_update import thinned
        from hf_recipes.export.proofs.tensors import prove_tensors

        with progress(inputs.plan.nbytes, "proving") as bar:
            written.proof["tensors"] = prove_tensors(inputs.plan, staging, threads=order.threads, progress=bar)
        if told := thinned(written.proof["tensors"]["update_kept"], SHORT_NAMES[order.dtype]):
            written.notices.append(f"R{told[1:]}.")
            logger.warning("%s", written.notices[-1])
    written.proof["companions"] = prove_companions(staging, adapter, base, inputs.end_tokens)
    if order.proof == "logits":
        written.proof["logits"] = _compare_logits(order, inputs, staging, written)


def _compare_logits(order: MergeOrder, inputs: MergeInputs, staging: Path, written: Written) -> dict[str, Any]:
    from hf_recipes.export.proofs.logits import compare_logits
    from hf_recipes.export.proofs.rounding import rounded_tensors

    weights = order.combination.weights or (1.0,) * len(inputs.places)
    return compare_logits(
        list(zip(inputs.places, weights, strict=True)),
        inputs.base.directory,
        staging,
        dtype=order.dtype,
        update_kept=written.proof.get("tensors", {}).get("update_kept"),
        rounded=rounded_tensors(inputs.plan) if inputs.plan else None,
        rows=order.rows,
        labels=order.labels,
        prompts=order.prompts,
        base_values=order.base_values,
        quantization=_trained_quantization(order, inputs),
    )


def _trained_quantization(order: MergeOrder, inputs: MergeInputs) -> TrainedQuantization | None:
    """How training quantised the base, unless it is stored so or another one."""
    from hf_recipes.export.bases.trained_quantization import parse_quantization, recorded_quantization

    if inputs.base.config.get("quantization_config") or inputs.identity == "other":
        return None
    if isinstance(order.quantization, str):
        return parse_quantization(order.quantization)
    return order.quantization or recorded_quantization(inputs.run)
