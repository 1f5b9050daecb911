"""What a merge reads: adapters and base by their headers, found, told apart, and fitted to each other."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import Adapter, read_config
from hf_recipes.export.bases.base_values import with_base_values
from hf_recipes.export.bases.find import adapter_names, find_adapter, find_base
from hf_recipes.export.bases.gguf import opened_base, trained_dtype
from hf_recipes.export.bases.identity import check_identity, recorded_run
from hf_recipes.export.bases.read import BaseModel, read_base
from hf_recipes.export.combine import read_adapters
from hf_recipes.export.companions import check_tokenizer, has_tokenizer
from hf_recipes.export.conversion import NotReversible
from hf_recipes.export.heads import with_head
from hf_recipes.export.merge_order import SAFETENSORS, MergeOrder
from hf_recipes.export.methods import IN_MEMORY_SETTINGS, route
from hf_recipes.export.plan import MergePlan, plan_merge
from hf_recipes.export.shards import divide, parse_size
from hf_recipes.export.staging import check_output


@dataclass(frozen=True)
class MergeInputs:
    """What is merged.

    Attributes:
        places: the adapters' directories.
        config, run: adapter_config.json of the first, and the run.json beside it (empty without one).
        base: as read; `base_place` is what was found, a directory or a GGUF file.
        identity: of the base against the recorded one: ``same``, ``other`` or ``unknown``.
        values: of the base, as told in the report.
        adapter, plan: None where PEFT has to merge, in memory, for the reason `method`.
    """

    places: list[Path]
    config: dict[str, Any]
    run: dict[str, Any]
    base: BaseModel
    base_place: Path
    identity: str
    values: str
    adapter: Adapter | None
    plan: MergePlan | None
    method: str | None

    @property
    def end_tokens(self) -> Sequence[int]:
        """The ids that ended a turn in training: as the run recorded, or, of an adapter of another tool, as its own
        chat template ends them."""
        return self.run.get("end_of_turn_token_ids") or self._ends_of_template

    @functools.cached_property
    def _ends_of_template(self) -> Sequence[int]:
        if not has_tokenizer(self.places[0]):
            return ()
        from hf_recipes.export.serving.files import read_served
        from hf_recipes.export.serving.stopping import end_of_turn

        try:
            served = read_served(self.places[0])
        except UserError:  # files of another make, which are copied as they are
            return ()
        end = end_of_turn(served) if served.template is not None else None
        return () if end is None else (end[1],)


@contextmanager
def opened_inputs(
    order: MergeOrder, given: Sequence[Path | str], base: Path | str | None, overwrite: bool, allow_other_base: bool
) -> Iterator[MergeInputs]:
    """Everything read by its headers and planned; a GGUF base is dequantised into a directory that is gone at the end.

    Raises:
        UserError: see `merge_adapter`.
    """
    if not given:
        raise UserError("No adapter was given: name the directory of one.")
    places = [find_adapter(place) for place in given]
    config, run = read_config(places[0]), recorded_run(places[0])
    adapter = _read_adapter(order, places, config, base is not None)
    recorded = run.get("base_model") or {}
    place = find_base(config, base, recorded)
    identity = _identity(place, places, allow_other_base)
    check_output(order.output, overwrite, *places, place)
    scratch, own = order.output.absolute().parent, has_tokenizer(places[0])
    with opened_base(place, dtype=trained_dtype(run), scratch=scratch, tokenizer=not own) as directory:
        if order.proof == "logits":
            check_tokenizer(places[0], directory)
        model, values = with_base_values(
            read_base(directory, adapter_names(config, recorded)),
            order.base_values,
            adapter_config=config,
            run=run,
            quantization=order.quantization,
        )
        plan, method = None, _reason(config)
        if adapter:
            model = with_head(model, adapter, run)
            try:
                plan = _plan(order, adapter, model)
            except NotReversible:
                if len(places) > 1 or order.combination.weights not in ((), (1.0,)):
                    raise
                adapter, method = None, "weights that transformers fuses and cannot take apart"
        yield MergeInputs(places, config, run, model, place, identity, values, adapter, plan, method)


def _identity(base: Path, adapters: Sequence[Path], allow_other: bool) -> str:
    """Of the base against what the runs of all adapters recorded: the worst answer."""
    answers = {check_identity(base, recorded_run(adapter).get("base_model") or {}, allow_other) for adapter in adapters}
    return next(answer for answer in ("other", "unknown", "same") if answer in answers)


def _read_adapter(
    order: MergeOrder, places: Sequence[Path], config: dict[str, Any], base_given: bool
) -> Adapter | None:
    """The adapter, or all as one; None where PEFT has to merge it in memory."""
    if len(places) > 1 or route(config, str(places[0])) == "stream":
        return read_adapters(places, order.combination, base_given=base_given)
    if order.combination.weights not in ((), (1.0,)):
        raise UserError(f"{places[0]} is merged by peft, in memory, and only with the weight 1: leave out the weights.")
    return None


def _reason(config: dict[str, Any]) -> str:
    return next((key for key in IN_MEMORY_SETTINGS if config.get(key)), str(config.get("peft_type")))


def _plan(order: MergeOrder, adapter: Adapter, base: BaseModel) -> MergePlan:
    largest = parse_size(order.max_shard_size) if order.max_shard_size else None
    return divide(plan_merge(adapter, base, SAFETENSORS[order.dtype]), largest)
