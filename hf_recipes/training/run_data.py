"""The data of a run: prepared once, shared by its ranks, written down; and the token at which its answers end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import first_on_each_machine, gather, is_main
from hf_recipes.data.mixing.streaming import StreamedData, stream_data
from hf_recipes.data.prepare import PreparedData, parts_by_role, prepare_data
from hf_recipes.data.settings import data_settings
from hf_recipes.training.same_run import tell_other_data
from hf_recipes.training.setup import Setup

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


def eval_parts(data: PreparedData | StreamedData) -> Dataset | dict[str, Dataset] | None:
    """The eval rows; domain and general ones apart where there are both."""
    parts = {} if data.eval is None else parts_by_role(data.eval, data.report)
    return parts if len(parts) > 1 else data.eval


def prepare(setup: Setup, tokenizer: PreTrainedTokenizerBase, resume: Path | None) -> PreparedData | StreamedData:
    """The first rank of each machine prepares; the others find it on disk, however long that took. Streams are opened
    by every rank."""
    values = setup.recipe.values
    settings = data_settings(values)
    if values.get("streaming"):
        data: PreparedData | StreamedData = stream_data(values["datasets"], tokenizer, **settings)
    else:
        data = first_on_each_machine(lambda: prepare_data(values["datasets"], tokenizer, **settings))
    if len(set(gather(data.report["fingerprint"]))) > 1:
        raise UserError("The ranks read different data: give all of them the same files (same content, same recipe).")
    if data.eval is None and not (values.get("evaluation") or {}).get("during_training"):
        setup.arguments.eval_strategy = "no"
    if resume:
        tell_other_data(setup.run, data.report)
    write_data_report(setup, data)
    return data


def write_data_report(setup: Setup, data: PreparedData | StreamedData) -> None:
    """Write data.json (rank 0)."""
    if is_main():
        setup.run.write(setup.run.data_json, data.report)


def stop_at_end_of_turn(model: Any, report: dict[str, Any]) -> list[int]:
    """Let generation stop at the token that ends a turn in the template: it is trained, so it must also be obeyed."""
    known = model.generation_config.eos_token_id
    ids = [known] if isinstance(known, int) else list(known or [])
    end = report.get("end_of_turn") or {}
    if end.get("token_id") is not None and end["token_id"] not in ids:
        ids.insert(0, end["token_id"])
        model.generation_config.eos_token_id = ids
        logger.info("Generation stops at %r too, the end of a turn in this template.", end.get("text"))
    return ids
