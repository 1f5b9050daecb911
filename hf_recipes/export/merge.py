"""Merge an adapter into its base: tensor by tensor, whole or not at all, and proven."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hf_recipes.core.dtypes import SHORT_NAMES
from hf_recipes.core.files import write_json
from hf_recipes.export.bases.base_values import BaseValues
from hf_recipes.export.combination import Combination
from hf_recipes.export.merge_inputs import MergeInputs, opened_inputs
from hf_recipes.export.merge_order import MergeOrder, Proof, check_order, target_dtype
from hf_recipes.export.merge_proving import prove
from hf_recipes.export.merge_report import REPORT_NAME, MergeReport
from hf_recipes.export.merge_writing import Written, full_disk_told, write_in_memory, write_streamed
from hf_recipes.export.staging import synced_meanwhile

if TYPE_CHECKING:
    from hf_recipes.export.bases.trained_quantization import TrainedQuantization
    from hf_recipes.export.proofs.logits import Prompts, Rows


def merge_adapter(
    adapter: Path | str | Sequence[Path | str],
    *,
    base: Path | str | None = None,
    output: Path | str,
    dtype: str,
    proof: Proof = "tensors",
    overwrite: bool = False,
    allow_other_base: bool = False,
    combination: Combination | None = None,
    base_values: BaseValues = "original",
    quantization: str | TrainedQuantization | None = None,
    max_shard_size: str | None = None,
    threads: int | None = None,
    device: str = "cpu",
    rows: Rows = (),
    labels: Rows = (),
    prompts: Prompts = (),
) -> MergeReport:
    """Merge PEFT adapters into their base: LoRA of every kind, (IA)³, and through PEFT, in memory, what else it merges.

    ``W' = W + scale·B·A``, or the rows or columns of ``W`` times a vector, in fp32, rounded once to `dtype`. Memory is
    that of a few blocks of rows, whatever the model's size. Unchanged tensors are copied as bytes when the dtype stays.
    Tokenizer, chat template and generation config are those in the adapter's directory.

    Args:
        adapter: directory with ``adapter_config.json`` and ``adapter_model.safetensors`` (a Trainer's checkpoint too),
            or a name on the Hub; or several, whose updates are combined.
        base: directory, ``.gguf`` file or Hub name in place of the one the adapter names.
        output: directory to make; it appears only when whole and, unless `proof` is ``off``, proven.
        dtype: ``bf16``, ``fp16`` or ``fp32`` in any spelling, for every float tensor.
        proof: ``tensors`` reads the files again and recomputes them; ``logits`` also compares with the live adapter in
            a process of its own; ``off``.
        overwrite: replace an existing output, once the new one is whole.
        allow_other_base: merge even if the base is not the one that run.json beside the adapter recorded.
        combination: how several adapters are combined, and with which weights; by default their sum.
        base_values: ``dequantized``: what quantised training (QLoRA) computed with, on the layers it quantised.
        quantization: how training quantised (``nf4,double,bf16``), where no run.json says it.
        max_shard_size: of an output file (``5GB``); by default the tensors keep their files of the base.
        threads: that read, compute and write; by default one a core, 8 at most.
        device: ``cuda`` makes products and sums on a GPU; the proof by tensors is always made on the CPU.
        rows: samples of the training's data as token ids, for the proof by logits.
        labels: of the rows, −100 for what was not learned.
        prompts: conversations to answer there, beside the fixed ones.

    Raises:
        UserError: adapter or base cannot be merged (see `read_adapters`, `read_base`, `plan_merge`), the output exists,
            or the disk is too full.
        CheckFailed: the adapter changes nothing, or a proof fails; no output is left.
    """
    started = time.perf_counter()
    order = MergeOrder(
        output=Path(output),
        dtype=target_dtype(dtype),
        proof=proof,
        combination=combination or Combination(),
        base_values=base_values,
        quantization=quantization,
        max_shard_size=max_shard_size,
        threads=threads,
        device=device,
        rows=rows,
        labels=labels,
        prompts=prompts,
    )
    check_order(order)
    given = [adapter] if isinstance(adapter, (str, Path)) else list(adapter)
    with opened_inputs(order, given, base, overwrite, allow_other_base) as inputs:
        return _merge(order, inputs, started)


def _merge(order: MergeOrder, inputs: MergeInputs, started: float) -> MergeReport:
    write = write_streamed if inputs.adapter else write_in_memory
    with full_disk_told(order.output), write(order, inputs) as (staging, written):
        seconds = time.perf_counter() - started
        with synced_meanwhile(staging):
            prove(order, inputs, staging, written)
        report = report_of(order, inputs, written, seconds)
        write_json(staging / REPORT_NAME, report.to_dict())
    return report


def report_of(order: MergeOrder, inputs: MergeInputs, written: Written, seconds: float) -> MergeReport:
    plan, facts = inputs.plan, written.facts
    consumed = len(inputs.adapter.entries) if inputs.adapter else facts["adapter_tensors"]
    return MergeReport(
        output=order.output,
        adapter=inputs.places[0],
        base=inputs.base_place,
        base_identity=inputs.identity,
        base_values=inputs.values,
        dtype=SHORT_NAMES[order.dtype],
        way="stream" if plan else "in memory",
        adapters=[
            {"adapter": str(place), "weight": weight}
            for place, weight in zip(
                inputs.places, order.combination.weights or (1.0,) * len(inputs.places), strict=True
            )
        ],
        combination=asdict(order.combination) if len(inputs.places) > 1 else None,
        tensors_total=len(plan.outputs) if plan else facts["tensors_total"],
        tensors_merged=len(plan.edited) if plan else facts["tensors_changed"],
        tensors_changed=written.changed,
        adapter_tensors_consumed=consumed,
        untied=plan.untied if plan else False,
        vocab_size=plan.vocab_size if plan else None,
        bytes=plan.nbytes if plan else facts["bytes"],
        seconds=seconds,
        notices=written.notices,
        proof=written.proof,
    )
