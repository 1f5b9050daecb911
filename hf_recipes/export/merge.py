"""Merge a LoRA or (IA)³ adapter into its base: tensor by tensor, whole or not at all, and proven."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from hf_recipes.core.dtypes import SHORT_NAMES, canonical_dtype_name
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.files import json_safe, write_json
from hf_recipes.core.log import logger
from hf_recipes.export.adapter import Adapter, read_adapter
from hf_recipes.export.bases.find import find_base
from hf_recipes.export.bases.identity import check_identity, recorded_run
from hf_recipes.export.bases.read import INDEX_NAME, BaseModel, read_base
from hf_recipes.export.companions import check_tokenizer, merged_config, tell, write_companions
from hf_recipes.export.heads import with_head
from hf_recipes.export.plan import MergePlan, plan_merge
from hf_recipes.export.staging import check_output, check_space, staged

Proof = Literal["tensors", "logits", "off"]
REPORT_NAME = "hf_recipes_merge.json"
_SAFETENSORS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class MergeReport:
    """What a merge did; also in the output as ``hf_recipes_merge.json``.

    `dtype` is ``bf16``, ``fp16`` or ``fp32``; `base_identity` ``same``, ``other`` or ``unknown`` against what the run
    recorded; `seconds` are those of reading and writing, each proof has its own; `proof` has the keys ``tensors`` (see
    `prove_tensors`) and ``logits`` (see `compare_logits`), as far as they were asked for.
    """

    output: Path
    adapter: Path
    base: Path
    base_identity: str
    dtype: str
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
            lines.append(
                f"  tensors: {tensors['copied']} as in the base to the byte, {tensors['recomputed']} recomputed, "
                f"largest error {tensors['largest_error']:.2f} of what rounding allows ({tensors['seconds']:.1f} s)"
            )
        if logits := self.proof.get("logits"):
            lines += [f"  {line}" for line in _logits_lines(logits)]
        return lines


def _logits_lines(logits: dict[str, Any]) -> list[str]:
    same, prompts = logits["same_generations"], logits["prompts"]
    return [
        f"logits: adapter against merged on {logits['positions']} positions: largest difference "
        f"{logits['max_abs_difference']:.2g}, KL {logits['kl_mean']:.1e}, same top token "
        f"{logits['top1_agreement']:.2%}; {same} of {prompts} greedy answers the same ({logits['seconds']:.1f} s)",
        logits["meaning"],
    ]


def merge_adapter(
    adapter: Path | str,
    *,
    base: Path | str | None = None,
    output: Path | str,
    dtype: str,
    proof: Proof = "tensors",
    overwrite: bool = False,
    allow_other_base: bool = False,
) -> MergeReport:
    """Merge a PEFT adapter into its 16-bit base: LoRA (rsLoRA, DoRA, trained modules, tokens and biases included) or
    (IA)³.

    ``W' = W + scale·B·A``, or the rows or columns of ``W`` times a vector, in fp32, rounded once to `dtype`. Memory is
    that of a few tensors. The base's files keep their division into shards; unchanged tensors are copied as bytes when
    the dtype stays. Tokenizer, chat template and generation config are those in the adapter's directory.

    Args:
        adapter: directory with ``adapter_config.json`` and ``adapter_model.safetensors`` (a Trainer's checkpoint too).
        base: directory or Hub name in place of the one the adapter names.
        output: directory to make; it appears only when whole and, unless `proof` is ``off``, proven.
        dtype: ``bf16``, ``fp16`` or ``fp32`` in any spelling, for every float tensor.
        proof: ``tensors`` reads the files again and recomputes them; ``logits`` also compares with the live adapter in
            a process of its own; ``off``.
        overwrite: replace an existing output, once the new one is whole.
        allow_other_base: merge even if the base is not the one that run.json beside the adapter recorded.

    Raises:
        UserError: the adapter or base cannot be merged (see `read_adapter`, `read_base`, `plan_merge`), the output
            exists, or the disk is too full.
        CheckFailed: the adapter changes nothing, or a proof fails; no output is left.
    """
    started = time.perf_counter()
    name = _target(dtype)
    if proof not in get_args(Proof):
        raise UserError(f"proof: '{proof}' is none of {', '.join(get_args(Proof))}.")
    read, model, identity = _read(Path(adapter), base, allow_other_base)
    if proof == "logits":
        check_tokenizer(read.directory, model.directory)
    place = Path(output)
    check_output(place, overwrite, read.directory, model.directory)
    plan = plan_merge(read, model, _SAFETENSORS[name])
    check_space(place, plan.nbytes)
    _check_values(read)
    with staged(place) as staging:
        report = _write(staging, place, read, model, plan, name, identity, started)
        if proof != "off":
            from hf_recipes.export.proofs.tensors import prove_tensors

            report.proof["tensors"] = prove_tensors(plan, staging)
        if proof == "logits":
            from hf_recipes.export.proofs.logits import compare_logits

            report.proof["logits"] = compare_logits(read.directory, model.directory, staging)
        write_json(staging / REPORT_NAME, report.to_dict())
    return report


def _target(dtype: str) -> str:
    name = canonical_dtype_name(dtype)
    if name not in _SAFETENSORS:
        raise UserError(f"dtype: '{dtype}' names no dtype to merge to: write bf16, fp16 or fp32.")
    return name


def _read(adapter: Path, base: Path | str | None, allow_other_base: bool) -> tuple[Adapter, BaseModel, str]:
    read = read_adapter(adapter)
    run = recorded_run(adapter)
    recorded = run.get("base_model") or {}
    directory = find_base(read.config, base, recorded)
    model = with_head(read_base(directory), read, run)
    return read, model, check_identity(directory, recorded, allow_other_base)


def _check_values(adapter: Adapter) -> None:
    from hf_recipes.export.stream import check_finite, is_untrained

    check_finite(adapter)
    if is_untrained(adapter):
        sign = "vectors are one" if adapter.config.get("peft_type") == "IA3" else "B matrices are zero"
        raise CheckFailed(
            f"{adapter.directory} changes nothing: all its {sign}, as before the first step; nothing was merged"
        )


def _write(
    staging: Path,
    output: Path,
    adapter: Adapter,
    base: BaseModel,
    plan: MergePlan,
    dtype: str,
    identity: str,
    started: float,
) -> MergeReport:
    from hf_recipes.export.stream import write_tensors

    changed = write_tensors(plan, staging)
    _tell_unchanged(plan, changed, dtype)
    config = merged_config(base, dtype, plan.vocab_size, plan.untied)
    notices = write_companions(staging, adapter.directory, base.directory, config)
    if plan.untied:
        notices.append("Embeddings and head differ after training: both were written, tie_word_embeddings is false.")
    if plan.vocab_size is not None:
        notices.append(f"The vocabulary was extended in training: config.json now says {plan.vocab_size}.")
    tell(notices)
    if base.index is not None:
        write_json(staging / INDEX_NAME, _index(plan, base.index))
    return MergeReport(
        output=output,
        adapter=adapter.directory,
        base=base.directory,
        base_identity=identity,
        dtype=SHORT_NAMES[dtype],
        tensors_total=len(plan.outputs),
        tensors_merged=len(plan.edited),
        tensors_changed=len(changed),
        adapter_tensors_consumed=len(adapter.entries),
        untied=plan.untied,
        vocab_size=plan.vocab_size,
        bytes=plan.nbytes,
        seconds=time.perf_counter() - started,
        notices=notices,
    )


def _tell_unchanged(plan: MergePlan, changed: list[str], dtype: str) -> None:
    """No change at all is a failure, some unchanged tensors a warning: their updates are below a rounding step."""
    trained = [output.spec.name for output in plan.edited if output.edit and output.edit.is_trained]
    same = [name for name in trained if name not in changed]
    if not changed:
        raise CheckFailed(
            f"no weight changed: every update is smaller than half a rounding step of {SHORT_NAMES[dtype]}; merge to "
            "fp32 or keep the adapter apart; nothing was merged"
        )
    if same:
        logger.warning(
            "%d of %d trained tensors equal the base (their updates are zero or below a rounding step), e.g. %s.",
            len(same),
            len(trained),
            same[0],
        )


def _index(plan: MergePlan, old: dict[str, Any]) -> dict[str, Any]:
    """The shard index: total size in bytes, and for each tensor its file."""
    metadata: dict[str, Any] = {**(old.get("metadata") or {}), "total_size": plan.nbytes}
    if "total_parameters" in metadata:
        metadata["total_parameters"] = sum(output.elements for output in plan.outputs)
    return {"metadata": metadata, "weight_map": {o.spec.name: o.shard for o in plan.outputs}}
