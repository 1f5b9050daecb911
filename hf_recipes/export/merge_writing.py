"""The two ways to write a merged model: streamed by plain algebra, and in memory by PEFT."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from hf_recipes.core.dtypes import SHORT_NAMES
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.files import write_json
from hf_recipes.core.free_space import check_free_space
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import BITS_PER_ELEMENT
from hf_recipes.export.adapter import Adapter, read_adapter
from hf_recipes.export.bases.read import INDEX_NAME
from hf_recipes.export.companions import merged_config, tell, write_companions
from hf_recipes.export.merge_inputs import MergeInputs
from hf_recipes.export.merge_order import SAFETENSORS, MergeOrder
from hf_recipes.export.plan import MergePlan
from hf_recipes.export.progress import progress
from hf_recipes.export.shards import index_of
from hf_recipes.export.staging import staged


@dataclass
class Written:
    """What was written, and later what was proven of it; `facts` are those of a merge in memory."""

    notices: list[str]
    changed: int
    proof: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@contextmanager
def write_streamed(order: MergeOrder, inputs: MergeInputs) -> Iterator[tuple[Path, Written]]:
    """Merge by plain algebra into a directory that takes the output's name when the block ends well."""
    from hf_recipes.export.stream import write_tensors

    adapter, plan = inputs.adapter, inputs.plan
    assert adapter is not None and plan is not None
    _check_space(order.output, plan.nbytes)
    _check_values(adapter)
    with staged(order.output) as staging:
        with progress(plan.nbytes, "merging") as bar:
            changed = write_tensors(plan, staging, threads=order.threads, device=order.device, progress=bar)
        _tell_unchanged(plan, changed, order.dtype)
        notices = [*_adapter_notices(inputs), *_plan_notices(plan)]
        tell(notices)
        notices += _write_companions(order, inputs, staging, plan.vocab_size, plan.untied)
        if index := index_of(plan, inputs.base.index):
            write_json(staging / INDEX_NAME, index)
        yield staging, Written(notices, len(changed))


@contextmanager
def write_in_memory(order: MergeOrder, inputs: MergeInputs) -> Iterator[tuple[Path, Written]]:
    """The same through PEFT, for adapters that it alone can merge."""
    from hf_recipes.export.in_memory import merge_in_memory

    assert inputs.method is not None
    bits = BITS_PER_ELEMENT[SAFETENSORS[order.dtype]]
    _check_space(order.output, sum(prod(tensor.shape) for tensor in inputs.base.tensors.values()) * bits // 8)
    notices = [
        f"Only PEFT can merge this adapter ({inputs.method}): the whole model is taken into memory, in fp32, not one "
        "tensor after the other."
    ]  # told, with the memory it takes, by the merge itself
    with staged(order.output) as staging:
        facts = merge_in_memory(
            inputs.places[0],
            inputs.base,
            staging,
            order.dtype,
            method=inputs.method,
            max_shard_size=order.max_shard_size or "50GB",
        )
        if facts.left_out:
            left_out = f"{len(facts.left_out)} tensors of the base that transformers does not load"
            notices.append(f"{left_out} ({facts.left_out[0]} …) are not in the output.")
            tell(notices[-1:])
        notices += _write_companions(order, inputs, staging, None, False)
        yield staging, Written(notices, facts.tensors_changed, facts=asdict(facts))


def _write_companions(
    order: MergeOrder, inputs: MergeInputs, staging: Path, vocab_size: int | None, untied: bool
) -> list[str]:
    config = merged_config(inputs.base, order.dtype, vocab_size, untied)
    notices = write_companions(staging, inputs.places[0], inputs.base.directory, config, inputs.end_tokens)
    tell(notices)
    return notices


def _check_values(adapter: Adapter) -> None:
    from hf_recipes.export.soundness import check_finite, is_untrained

    check_finite(adapter)
    if is_untrained(adapter):
        sign = "vectors are one" if adapter.config.get("peft_type") == "IA3" else "B matrices are zero"
        raise CheckFailed(
            f"{adapter.directory} changes nothing: all its {sign}, as before the first step; nothing was merged"
        )


def _tell_unchanged(plan: MergePlan, changed: list[str], dtype: str) -> None:
    """No change at all is a failure, some unchanged tensors a warning: their updates are below a rounding step."""
    trained = [output.spec.name for output in plan.edited if output.group or (output.edit and output.edit.is_trained)]
    same = sorted(set(trained) - set(changed))
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


def _adapter_notices(inputs: MergeInputs) -> list[str]:
    """Which of several adapters lends its tokenizer, which of them adds nothing, and copies of the base's own values
    that are not this base's (PEFT saves embeddings along with an adapter that targets them)."""
    from hf_recipes.export.soundness import is_untrained, other_base_values, unnamed_modules

    notices = []
    for place in inputs.places:
        if unnamed := unnamed_modules(read_adapter(place)):
            notices.append(
                f"{place} has updates of {len(unnamed)} modules that its adapter_config.json (target_modules) does not "
                f"name, e.g. {unnamed[0]}: they are merged, but peft would not load them."
            )
    if len(inputs.places) > 1:
        notices.append(f"Tokenizer, template and generation config are those of {inputs.places[0]}.")
        notices += [
            f"{place} adds nothing: it is as before the first step."
            for place in inputs.places
            if is_untrained(read_adapter(place))
        ]
    assert inputs.plan is not None
    for name in other_base_values(inputs.plan) if inputs.identity != "same" else ():
        notices.append(
            f"'{name}': the adapter was saved with its base's own values, which are not those of the base given; its "
            "own are taken."
        )
    return notices


def _plan_notices(plan: MergePlan) -> list[str]:
    notices = []
    if plan.untied:
        notices.append("Embeddings and head differ after training: both were written, tie_word_embeddings is false.")
    if plan.vocab_size is not None:
        notices.append(f"The vocabulary was extended in training: config.json now says {plan.vocab_size}.")
    return notices


@contextmanager
def full_disk_told(output: Path) -> Iterator[None]:
    """The disk had room at the start; others may have filled it since."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"The disk of '{output}' became full during the merge: make room, or name an output on another disk; "
            "nothing was left there."
        ) from None


def _check_space(output: Path, nbytes: int) -> None:
    check_free_space(output, nbytes, "The merged model needs", "make room, or name an output on another disk")
